// Works a report by its keys inside a browser; what it then shows becomes the title of the page.
const press = (key, at = document.activeElement) => at.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
setTimeout(() => {
  const steps = [], see = () => steps.push([$("h-one").textContent, $("cell").textContent, $("map").getAttribute("aria-label")]);
  document.querySelector('#thumbs [data-site="1"][data-head="1"]').click(); see();
  press("ArrowRight"); see();
  press("Enter"); press("ArrowUp"); see();
  press("Escape"); see();
  press("Escape"); steps.push(document.activeElement.getAttribute("aria-label"));
  press("ArrowUp"); see();
  const wide = document.documentElement.scrollWidth;
  const unnamed = [...document.querySelectorAll("button, canvas[tabindex]")].filter(e => !e.textContent && !e.getAttribute("aria-label")).length;
  document.title = JSON.stringify({ steps, wide, unnamed });
}, 500);
