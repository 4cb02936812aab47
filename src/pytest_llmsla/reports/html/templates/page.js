// Only comfort: without it nothing is missing from the page.
(() => {
  const nav = document.querySelector("nav");
  const all = [...document.querySelectorAll("main details")];
  if (!nav || !all.length) return;
  const button = document.createElement("button");
  button.type = "button";
  let open = false;
  const say = () => {
    button.textContent = open ? "Close all details" : "Open all details";
    button.setAttribute("aria-pressed", String(open));
  };
  button.addEventListener("click", () => {
    open = !open;
    for (const one of all) one.open = open;
    say();
  });
  say();
  nav.append(button);
})();
