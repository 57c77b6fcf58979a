// Light or dark theme: the user's choice, otherwise the system's preference.
// A classic script, because a module would run after the first paint.
(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => localStorage.getItem("rdlm-theme");
  const apply = () => {
    root.dataset.theme = chosen() ?? (system.matches ? "dark" : "light");
    const button = document.getElementById("theme");
    button?.setAttribute("aria-pressed", String(root.dataset.theme === "dark"));
    document.dispatchEvent(new Event("themechange"));
  };
  system.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", () => {
      localStorage.setItem("rdlm-theme", root.dataset.theme === "dark" ? "light" : "dark");
      apply();
    });
    apply();
  });
  apply();
})();
