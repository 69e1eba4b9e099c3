"use strict";
// Light or dark: the system's choice until the button is pressed; what was chosen is kept where the browser can.
(() => {
  const root = document.documentElement, button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => { try { return localStorage.getItem("sprl-theme"); } catch { return null; } };
  const isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const name = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  if (["light", "dark"].includes(stored())) root.dataset.theme = stored();
  name();
  system.addEventListener("change", name);
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("sprl-theme", root.dataset.theme); } catch { /* a browser without storage: chosen for this view */ }
    name();
  });
})();
