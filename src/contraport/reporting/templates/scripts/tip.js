// Tooltip: text, and the thumbnail if there is one.
const tip = document.getElementById("tip");
const [picture, words] = tip.children;

function show(element, key, item) {
  const { columns } = SHEETS[key];
  element.classList.add("pic", `sheet-${key}`);
  element.style.setProperty("--x", item % columns);
  element.style.setProperty("--y", Math.floor(item / columns));
}

function showTip(event, text, key, item) {
  words.textContent = text;
  picture.className = "";
  if (key) show(picture, key, item);
  tip.hidden = false;
  const { clientX, clientY } = event;
  const left = clientX + 16 + tip.offsetWidth > innerWidth ? clientX - 16 - tip.offsetWidth : clientX + 16;
  const top = Math.min(clientY + 12, innerHeight - tip.offsetHeight - 8);
  tip.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, top)}px)`;
}

function hideTip() { tip.hidden = true; }
