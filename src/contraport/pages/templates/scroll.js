// A table that is wider than the page says so.
function hint() {
  for (const box of document.querySelectorAll(".hint + .scroll")) box.previousElementSibling.hidden = box.scrollWidth <= box.clientWidth;
}

hint();
addEventListener("resize", hint);
document.addEventListener("toggle", hint, true);
