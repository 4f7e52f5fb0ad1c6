// A click on a picture shows it at its own size, over the page; a further click, or Escape, closes it.
document.addEventListener("click", (event) => {
  const link = event.target.closest("a.enlarge");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || !window.HTMLDialogElement) return;
  event.preventDefault();
  event.stopPropagation();
  const dialog = document.createElement("dialog");
  const picture = link.querySelector("img").cloneNode();
  dialog.className = "enlarged";
  dialog.append(picture);
  dialog.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}, true);
