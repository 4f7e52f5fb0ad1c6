"""The files of bAbI 1.2 (Weston et al., 2015; CC BY 3.0), each pinned by the sha256 of its bytes.

The archive splits the training questions in its folders `en-valid` and `en-valid-10k`. No checksum is known of one file, the training file
of task 3 of the larger set: what cannot be verified is not downloaded.
"""

from __future__ import annotations

from collections.abc import Mapping

from formers.core import FormersError
from formers.data.catalogue import Package

ROOT = "tasks_1-20_v1-2"
FOLDERS = {"babi": "en-valid", "babi-10k": "en-valid-10k"}
PARTS = ("train", "valid", "test")
TASKS = range(1, 21)
URLS = (
    "https://s3.amazonaws.com/text-datasets/babi_tasks_1-20_v1-2.tar.gz",
    "http://www.thespermwhale.com/jaseweston/babi/tasks_1-20_v1-2.tar.gz",
    "https://dl.fbaipublicfiles.com/parlai/babi/babi.tar.gz",
)
PACKED = (f"{ROOT}.tar.gz", "babi_tasks_1-20_v1-2.tar.gz", "babi.tar.gz", f"{ROOT}.partial.tar.gz")
"""File names that the archive may have in FORMERS_DATA."""

_BABI = """
train 1 e2ab2286843af159b14ec3fcffeb72411b36ef83b7b656addd0c778df9c9cb3d
train 2 5d49bbda2d105beba39fa2518ff462f57f1e36f02852758a8ac37fb8d013f733
train 3 3177a5aa6de0b6a0f83a341f0929c5a0db85239cffa615dcf6fd36bd28e10258
train 4 7cbbf503895e6fa6cd3a7bfc97bb4f28376e0ba5958cde8098df82180c1a4490
train 5 a53aea1aef2626d378e9e11e0609cc70e51552d9e7dbae225d0a23cc17741774
train 6 2ed13c13ce1750d7edcd0d232f5f54064572d1647e9f9154ea0dc273d252d23a
train 7 60469d2cda8bd0ef2977c0b75387756106ebcd6e63ee5aa2981845a94a4e13b0
train 8 6673c6ca5b9703c933768fd00b1a0be47fed30f2b0092079875cc5980d1fef0f
train 9 1d3d5ee5b0d3ba088a6c7b8ce5ffa592415e7a8fdc87b9eb9f43db2084ae9d82
train 10 d0ed41783098eb3497a0b032a79eafd71c4856c3bf55b799264a848ac5b38c33
train 11 ed021b4699427d8f38843cc95c6f607797a29230209c86a684b3fb0701c82496
train 12 7f347326909be3845d6e0f6958af7be9b8f696fb4791f0d6fe61321de216d0f8
train 13 e99c6da9d613f5cb055e40dc85c9c3f41ad90bc9f79e7edeb27ab825bb15b980
train 14 bb18278b6c56a9247f1b90de283c253ffae5b3ce7488fbfc8d3aaa34f27b2664
train 15 4abcb703c4be035800f1026a19451dceca8af25d2683b53ec274c1b0d97078a3
train 16 e5eb4ad969c6d356d18e46253b6531cf3bf469319e804d04c00ff3e5bd45c97b
train 17 e5b5386a4e48a9333cc2335300efc7dd86116c802f5e6459b0d1c7b4f8a966ca
train 18 f59d2b37e75c9d3cfa6368ec98f1b75db38137f899ea9bec0a92ec50119aab19
train 19 232e92c3621e929eb568da56790ea215fd4baf6ae0b5441983ba9f282c13c595
train 20 8a52048df48d8c8c6cce21c8b0f9087278f066c8daa3a4dd14f7c0356fe571b9
valid 1 8a4d571909a77beb99d1e25cd1708795f3a83028d52dd0db6211fc283c266e7c
valid 2 b17f0547cf5f6b35a618a1c486817811b107b506155248fb8d521490631e4073
valid 3 36964df287aa88afad243837d4fc87461e5fd0f51f5ab74be8c8688573b284ef
valid 4 16b0b699e50950b5b01154f1fc88b4170d6fc3b0a533709fd86dcd83ba878177
valid 5 e9a973a9247eabf12ef8edd1f98f3be0f79c28208ccec4e1f224ad3c6664d948
valid 6 346db07bba227f8d848333b84b1b776cd958c94ef15f6026bc1e76d9a8fcf7d6
valid 7 262f1409ee79ff51af26ca4d9ea8b9c277d2d32addcc9b4f2a06c0668a0a475a
valid 8 b488bee4ad3ef51526c1dce990dff6abff66f2a0e364ea1e15bc8256b685e099
valid 9 6209011fc2d90b048002539e536e1dc0fe984672a2c08bdc5760014de6c7527e
valid 10 144cf8454f599f713a75803bfbbd0d7a474d016cc73890f002908be37b0907c8
valid 11 7856fad68b0ac92f0f44dd5f4bc1a8c5653c8d9034a9202ebdd43cccc60cf790
valid 12 331f48d4667211d14d9c20cc2eff9f0c725fdb5beb399a94fe5b6abeeab39dad
valid 13 3fce7c612b540a3c3667c4ec5ff3cfd028542280721806e264d8038e75485af7
valid 14 46aa8462bbbffd33ad0cb2cb1e7a8d676b417038e6a249220db1b148ef92b22d
valid 15 265938b325771eb8d72069460b8f9ac7461f7ceefc4ad465b0682629f1a5a251
valid 16 3de113dcc0380c838987ac0940352aa8f34fc16e1c7ead7902ebd81a501a692d
valid 17 65bc10c74530a9db8cbf29d71a67f867ecbadb4977c448b78273f2d74ae68fea
valid 18 7fe06186367fd844d953295b18ad140000cec830322f79e14d9c4546460b29ba
valid 19 c6629238c7340d244a78d313e289c27a00a018c3caea2867d8645b68d1beb3a1
valid 20 d14d98ff8a7ea86b8900fcb2cc510a23fd056a76bcf32b8a7bd3293c48dd595a
test 1 55acf66cef2f6d798e2aa1d056e1ec8f24e910ea9215b639450574321132959b
test 2 eff93fb9cd81ba02eb765772cf7cc269769ed44ec71cbbbc19cfb16ee5eba0f6
test 3 17795c977100baf8188f386522ae301b62d6c1a13efc01b3aea781e588b4d57f
test 4 07f0ca18ddeea9eed4ba6d59e162adcb0ce44815721114b3540d92825509331e
test 5 ec825c1c8a76e63a31f0d7a7763cd63740e98332fa9bdf246a19068949bd5f97
test 6 b108b16f1eccbd1c24df6dca2649079a7b2f10af7fd12d4c45a3393802de59e3
test 7 a74d1f2b91329b2bae814d41cdac2fbdfdf0328562b7d8afa9a0fa576d461e27
test 8 362a653c821a580fa315a85243b4f03bfa06fa7e0269b6f8e596f8fe6911646a
test 9 63590aff3f89993db409f0e9a9eb39c2a5b9d5efff99b255d800a891b0044d9f
test 10 fde8f20ed0b3ba979058ed391a566af34653f23baab5b2793ee37f87ef4e88b7
test 11 46f3290d0158ce1285a40cd2d793f5a65f86ae5000226e165cbc85a3dfeb2f6f
test 12 6437718f8f9801ce345869e910b896836cdc6fd2d01dc7b4d2df49730703b4b1
test 13 76a25b684f23c9cc473d8cd1465506168b9a1ec8891cfc59d0bbd87e6a064990
test 14 e3f0b19858ffbec3ed1e49076cc4d1295a89ce146c50318b862f13f202b3caf2
test 15 32b77e117fe9acf5f94906684e3b5206de0108e646c76e1da3e022896ec7ee94
test 16 4a11e55366f2a5a859b5a81f683ee23801bdbe71ef984e51adb976bd053e8dcf
test 17 9e1e0250ed4ec1831757fab26c04138f81ea557ebf6976a220db879cbed04bac
test 18 d34f70eb7228a276fcb3a7854174fe562c5634f4fb454a39fc3d1ad9934be3ef
test 19 023e391f0d7f79c9e6ae1c46c093e2d0dbd50ab8fbd8965e037a75e3614c20e5
test 20 bd3bde3788ac14ba0ae095078f7b820fbd2bfa6a34dba9d1d46a34afde9c2729
"""

_BABI_10K = """
train 1 6f3dad60b5001427caf740404d6106aaea7257dc8e75a73afd4289475bed705a
train 2 e074f5119e67bca02338882e5fc50616a271d824dfde977f9c643fd3fa8748c5
train 3 unknown
train 4 2cf269f9ccfe792e50ac4c364f9ea9f6dabf23c64b8826e25c884b2e4ca2a678
train 5 998903406d464de7cfe622549bc7040403211da8e09891a9538d8de4858edf44
train 6 d3c276fd8041efb264e8589edea4f8f90488464b5ddf04fa163264711836636d
train 7 3c1cfb0290981d2d4abeb37376522f3c21e51ffa310d19093a1a8efb7ee77223
train 8 4da116c3265b9ba97f3dc9cb97f463632f21f7e5e752a6a3deeb364cb683b7ae
train 9 186733a0526ff52c6761642bc57092fcbde75b408dc33c6521d8ccecff53b147
train 10 3c4285c3f6e45fd85ba3944ca58b860c91ed44f1ed394723c7e268048e2f251c
train 11 8217e55886155843be48d06b53c8e990b876cd99c6fce048e33b55f1f9a159f0
train 12 d470857a0b3e0d4d92da39bc656053b35c990e14a1fa60761b707aa19eefb2c6
train 13 93b8ea332cdc791f74520d8f6f456a90dec5e216c6e73f065d11bfbbd9673827
train 14 2eb60c0c728d9888f78d641322848b8ca2359272e1b8c2b974e9e51b15f7246e
train 15 1aa31d576e196ad37f3802d1e6639c61417c31d720e8289353b145fb6af2db9d
train 16 5e6cbdcf78706889d066e7d4ef606a9eb9ad7e1d1fc33c4b406222f3f98aad4a
train 17 523425b8627312b9e169af60e46289f67e33358fe8f8a1efe2a365d06ad6ad1d
train 18 29901ebd6831d8e19f452d98aec10f8ad0c40488ff56f8153a77cedbeeb1da23
train 19 59854cc0f60642e16f5c8d887dd4d4b1a44b072e2499f1605119f0f88309097d
train 20 d3176fc7c5f2c337e1d74e69dd17954d85f4c19585c5687d5963a9733ddd36da
valid 1 a7a41a89ca009b00cd5869bb949f47bb21c3b5c4df424cd1795a5e6067f0562e
valid 2 cf3cb2877eada0bff7e84fe0cbbcc70fb45ea855c583fe963c6eb25c426726cc
valid 3 8da018e1b079299c25b34c62a509cde6b9820735c398357e69d1d72a1cc54537
valid 4 6864535aa47280f2486d93d0f5e209c0e720a97cdcdd0ed406e63929c7c28845
valid 5 db165e176ce585ee745fb797386fc9c28512eb28060fde810c77b76ac530cbe2
valid 6 58b488903ec1a1f1bf98f003a383d78976cebff02fef9a3f4d7a5ece442c3105
valid 7 f8fe1ebb0707269e059f6c874024d896e96eb4b3d03a001d9589487cdb6e51dd
valid 8 03d2192ae6603df0841d250a9619f25ce1e6c70ade67c8d4c3dcdcda56af9632
valid 9 62c8156c69a2f399db0e4454ef174328d2b70ad7dab4a6ef834dfc312862e700
valid 10 df0a8d20028b11700862faec7dda64956d84a36e590e0eb2ea6188271bcf464b
valid 11 4b7c481dddd99bce8015425463cf9bac68cc55d19537b72cd1dca0910512ab61
valid 12 985abac1f0d2a166c29984dad03c170b93e671c5e99c5628a80271f782bbf157
valid 13 8bcc1a09ad8bc7dbba32cc241879045a0a58daee0fd90082b57105bb5a6e0e50
valid 14 00169215f1f0bf995c556611b55d344a1a1d3f502ed71ff7c881e2da7e703afc
valid 15 6fa344c75562d126fb56438ce993a8dbc630cd9e199a007d6ede4b005e6234e4
valid 16 014ad9bb6f5f4a0141553f0e707a9a4e13fa617208888f15ea65f3ff9195b6d5
valid 17 0f391eeb822e60d5a187b8456c58f2d75481a4c37bbf36047809b4f5ca824350
valid 18 a41d67b4056c373247fbb03840688e4ff199a04b32d6f28fe684118a7d8381e8
valid 19 b188a6a68134cc3662e8b4efa1e0d8d1e594400063c69b4f090f9a5825593719
valid 20 ee57599d71919d00b2e864537c104cacb09432aa35a2a483e9ead323c6511ac4
test 1 55acf66cef2f6d798e2aa1d056e1ec8f24e910ea9215b639450574321132959b
test 2 eff93fb9cd81ba02eb765772cf7cc269769ed44ec71cbbbc19cfb16ee5eba0f6
test 3 17795c977100baf8188f386522ae301b62d6c1a13efc01b3aea781e588b4d57f
test 4 07f0ca18ddeea9eed4ba6d59e162adcb0ce44815721114b3540d92825509331e
test 5 ec825c1c8a76e63a31f0d7a7763cd63740e98332fa9bdf246a19068949bd5f97
test 6 b108b16f1eccbd1c24df6dca2649079a7b2f10af7fd12d4c45a3393802de59e3
test 7 a74d1f2b91329b2bae814d41cdac2fbdfdf0328562b7d8afa9a0fa576d461e27
test 8 362a653c821a580fa315a85243b4f03bfa06fa7e0269b6f8e596f8fe6911646a
test 9 63590aff3f89993db409f0e9a9eb39c2a5b9d5efff99b255d800a891b0044d9f
test 10 fde8f20ed0b3ba979058ed391a566af34653f23baab5b2793ee37f87ef4e88b7
test 11 46f3290d0158ce1285a40cd2d793f5a65f86ae5000226e165cbc85a3dfeb2f6f
test 12 6437718f8f9801ce345869e910b896836cdc6fd2d01dc7b4d2df49730703b4b1
test 13 76a25b684f23c9cc473d8cd1465506168b9a1ec8891cfc59d0bbd87e6a064990
test 14 e3f0b19858ffbec3ed1e49076cc4d1295a89ce146c50318b862f13f202b3caf2
test 15 32b77e117fe9acf5f94906684e3b5206de0108e646c76e1da3e022896ec7ee94
test 16 4a11e55366f2a5a859b5a81f683ee23801bdbe71ef984e51adb976bd053e8dcf
test 17 9e1e0250ed4ec1831757fab26c04138f81ea557ebf6976a220db879cbed04bac
test 18 d34f70eb7228a276fcb3a7854174fe562c5634f4fb454a39fc3d1ad9934be3ef
test 19 023e391f0d7f79c9e6ae1c46c093e2d0dbd50ab8fbd8965e037a75e3614c20e5
test 20 bd3bde3788ac14ba0ae095078f7b820fbd2bfa6a34dba9d1d46a34afde9c2729
"""


def _pins(table: str) -> dict[tuple[int, str], str]:
    """The checksums of a table, by task and part."""
    rows = (line.split() for line in table.strip().splitlines())
    return {(int(task), part): f"sha256:{value}" for part, task, value in rows if value != "unknown"}


PINS = {"babi": _pins(_BABI), "babi-10k": _pins(_BABI_10K)}


def package(name: str, tasks: tuple[int, ...]) -> Package:
    """The files of some tasks of a set, `qa1_train.txt` and so on; raises for a task with a file whose checksum is not known."""
    pins = PINS[name]
    for task in tasks:
        if any((task, part) not in pins for part in PARTS):
            raise FormersError(
                f"{name}:{task} cannot be verified, because the checksum of its training file is not known: use {name}:1-2,4-20 or "
                f"babi:{task}, or unpack the archive and give its folder, such as {ROOT}/en-10k:{task}."
            )
    return _package(name, {at: pin for at, pin in pins.items() if at[0] in tasks})


def whole_package(name: str) -> Package:
    """All files of a set whose checksums are known."""
    return _package(name, PINS[name])


def _package(name: str, pins: Mapping[tuple[int, str], str]) -> Package:
    files = {f"{ROOT}/{FOLDERS[name]}/qa{task}_{part}.txt": pin for (task, part), pin in pins.items()}
    return Package(files, URLS, PACKED, folder="babi")
