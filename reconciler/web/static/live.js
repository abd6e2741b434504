// Replaces the content of the page whenever the daemon reports a change, at most every two seconds.
"use strict";

const live = document.getElementById("live");
let waiting = false;

async function refresh() {
  waiting = false;
  const focused = document.activeElement;
  if (focused && focused.closest("form")) {
    return schedule(); // somebody is typing
  }
  const answer = await fetch(location.href, { cache: "no-store" });
  if (!answer.ok) {
    live.textContent = `The daemon answered ${answer.status}.`;
    return;
  }
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const scrolled = [...document.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
  document.querySelector("main").replaceWith(page.querySelector("main"));
  document.querySelector(".health").replaceWith(page.querySelector(".health"));
  [...document.querySelectorAll(".scroll")].forEach((box, i) => (box.scrollLeft = scrolled[i] || 0));
}

function schedule() {
  if (!waiting) {
    waiting = true;
    setTimeout(() => refresh().catch(() => (live.textContent = "The daemon does not answer.")), 2000);
  }
}

const stream = new EventSource(document.body.dataset.stream);
stream.addEventListener("change", schedule);
stream.addEventListener("open", () => (live.textContent = "Live."));
stream.addEventListener("error", () => (live.textContent = "Connection lost; trying again."));
