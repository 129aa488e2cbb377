// Keeps relative times current, applies live updates, and remembers nothing.
"use strict";

const LIMITS = [[120, "s", 1], [7200, "min", 60], [172800, "h", 3600], [Infinity, "d", 86400]];

function relative(at, { age, due }) {
  const seconds = (at - Date.now() - skew) / 1000;
  const size = Math.abs(seconds);
  const [, unit, step] = LIMITS.find(([most]) => size < most);
  const told = size < 1 ? "<1 s" : `${Math.floor(size / step)} ${unit}`;
  if (age !== undefined) return told;
  if (due !== undefined) return seconds > 0 ? `in ${told}` : "due now";
  return seconds > 1 ? `in ${told}` : `${told} ago`;
}

// The database's clock counts, not this computer's.
const now = document.documentElement.dataset.now;
const skew = now ? Date.parse(now) - Date.now() : 0;

function refreshTimes() {
  for (const each of document.querySelectorAll("time[datetime]")) {
    const told = relative(Date.parse(each.dateTime), each.dataset);
    if (each.textContent !== told) each.textContent = told;
  }
}
setInterval(refreshTimes, 1000);

// Changes `old` into `fresh` in place, so that focus, selection and open details stay.
function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
    old.replaceWith(document.importNode(fresh, true));
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  morphChildren(old, fresh);
}

// What has a data-key stays the same thing when others come or go before it. The rest is matched by position.
function morphChildren(old, fresh) {
  const focused = document.activeElement;
  const keyOf = (node) => node.dataset?.key;
  const wanted = new Set([...fresh.children].map(keyOf));
  const known = new Map();
  for (const node of [...old.children]) {
    if (keyOf(node) === undefined) continue;
    if (wanted.has(keyOf(node))) known.set(keyOf(node), node);
    else node.remove();
  }
  let place = old.firstChild;
  const drop = () => {
    const gone = place;
    place = place.nextSibling;
    gone.remove();
  };
  for (const node of fresh.childNodes) {
    const key = keyOf(node);
    const same = key === undefined ? place : known.get(key);
    if (!same || keyOf(same) !== key) {
      old.insertBefore(document.importNode(node, true), place);
      continue;
    }
    if (key !== undefined) {
      known.delete(key);
      while (place && place !== same && keyOf(place) === undefined) drop();
      if (place !== same) old.insertBefore(same, place);
    }
    place = same.nextSibling;
    morph(same, node);
  }
  while (place) drop();
  // What was moved has lost the focus.
  if (focused !== document.activeElement && old.contains(focused)) focused.focus({ preventScroll: true });
}

function apply(parts) {
  for (const [id, html] of Object.entries(parts)) {
    const place = document.getElementById(id);
    if (place) morphChildren(place, new DOMParser().parseFromString(html, "text/html").body);
  }
  refreshTimes();
  document.documentElement.dataset.updates = Number(document.documentElement.dataset.updates || 0) + 1;
}

// A page of the log does not move under its reader; it says that there is more.
function sayNewer(seq) {
  const place = document.getElementById("newer");
  if (place && seq > Number(place.dataset.seq)) {
    place.hidden = false;
    place.querySelector("span").textContent = (seq - Number(place.dataset.seq)).toLocaleString("en");
  }
}

// A hidden page gives its connection back: a browser has few of them for one host.
const AGAIN = 5000;
let source = null;

function connect() {
  const path = document.body.dataset.live;
  if (!path || source || document.hidden) return;
  source = new EventSource(path);
  source.onmessage = (message) => {
    const { parts, seq } = JSON.parse(message.data);
    document.body.classList.remove("stale");
    apply(parts);
    sayNewer(seq);
  };
  source.onerror = () => {
    document.body.classList.add("stale");
    // The browser tries again if the connection broke, but not if the answer was an error, such as a proxy's.
    if (source && source.readyState === EventSource.CLOSED) {
      disconnect();
      setTimeout(connect, AGAIN);
    }
  };
}

function disconnect() {
  if (source) source.close();
  source = null;
}

document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
window.addEventListener("pagehide", disconnect);
window.addEventListener("pageshow", connect);
connect();

// The address that `outrider dashboard` prints carries the token behind #, which browsers do not send.
function logIn() {
  const login = document.getElementById("login");
  const given = new URLSearchParams(location.hash.slice(1));
  if (!login || !given.has("token")) return;
  login.elements.token.value = given.get("token");
  login.elements.name.value = given.get("name") || "";
  history.replaceState(null, "", location.pathname + location.search);
  login.requestSubmit();
}
logIn();
// Opened in a tab that shows the login already, the address changes nothing but the part behind #.
window.addEventListener("hashchange", logIn);

// The page of an action under way follows it until it is done. The focus stays where it is.
async function follow() {
  try {
    const answer = await fetch(location.href, { redirect: "manual" });
    if (!answer.ok) return location.reload();
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    morph(document.getElementById("run"), fresh.getElementById("run"));
  } catch {
    // It does not answer now. The next time it may.
  }
  followUnfinished();
}

function followUnfinished() {
  if (document.getElementById("unfinished")) setTimeout(follow, 1000);
}
followUnfinished();

document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.closest("input, textarea, select")) {
    const search = document.getElementById("search");
    if (search) {
      event.preventDefault();
      search.focus();
    }
  }
});
