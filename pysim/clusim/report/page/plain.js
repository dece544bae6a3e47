// Page without plots: only its colours change.

let shown = setTheme("auto");
document.getElementById("theme").addEventListener("click", () => { shown = setTheme(shown === "dark" ? "light" : "dark"); });
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { shown = setTheme("auto"); });
window.addEventListener("beforeprint", () => setTheme("light"));
window.addEventListener("afterprint", () => setTheme(shown));
document.documentElement.dataset.ready = "true";
