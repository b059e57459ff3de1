// Sketches of the items in tables.
function pairs() {
  for (const box of document.querySelectorAll("[data-sketch]")) box.append(sketch(DATA.sketches[box.dataset.sketch], box.dataset.label));
}
