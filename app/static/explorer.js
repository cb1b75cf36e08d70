// What the page does in the browser: tokens that are appended as they come, the card with a token's details,
// links, downloads and keys. Text that people or models wrote is only ever set as text.
"use strict";

const explorer = (() => {
  let card = null;      // the one card of the page
  let owner = null;     // the token that it is shown for
  let pinned = false;   // opened by click or key: stays until closed
  let closing = 0;

  // ---- tokens ---------------------------------------------------------------------------------

  // Draws `props.value` = {model, note, streaming, html: [one string a token]}; what is drawn already stays.
  function answer(element, props, trigger, watch) {
    let drawn = [];
    const text = element.querySelector(".answer-text");
    const note = element.querySelector(".answer-note");
    const name = element.querySelector(".answer-name");
    const draw = () => {
      const value = props.value || { model: "", note: "", html: [] };
      if (!drawn.every((html, i) => html === value.html[i])) {
        hide();
        text.replaceChildren();
        drawn = [];
      }
      text.insertAdjacentHTML("beforeend", value.html.slice(drawn.length).join(""));
      drawn = value.html.slice();
      name.textContent = value.model;
      note.textContent = value.note;
      note.hidden = !value.note;
      if (value.streaming && !element.classList.contains("streaming")) reveal(element);
      element.classList.toggle("streaming", Boolean(value.streaming));
      text.setAttribute("aria-busy", String(Boolean(value.streaming)));
    };
    watch("value", draw);
    draw();

    const branch = (place, id) => trigger("branch", { place, id });
    const token = (event) => event.target.closest && event.target.closest(".token");
    text.addEventListener("pointerover", (event) => {
      if (token(event) && event.pointerType === "mouse" && !pinned) show(token(event), branch);
    });
    text.addEventListener("pointerout", (event) => {
      if (event.pointerType === "mouse" && !pinned) hideSoon();
    });
    text.addEventListener("focusin", (event) => {
      if (token(event) && token(event).matches(":focus-visible")) show(token(event), branch);
    });
    text.addEventListener("focusout", (event) => {
      if (!card || !card.contains(event.relatedTarget)) hideSoon();
    });
    text.addEventListener("click", (event) => {
      if (!token(event)) return;
      show(token(event), branch);
      pinned = true;
    });
    text.addEventListener("keydown", (event) => {
      const at = token(event);
      if (!at) return;
      const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const tokens = [...text.querySelectorAll(".token")];
      let next = null;
      if (move) next = tokens[tokens.indexOf(at) + move];
      if (event.key === "Home") next = tokens[0];
      if (event.key === "End") next = tokens[tokens.length - 1];
      if (next) {
        at.tabIndex = -1;
        next.tabIndex = 0;
        next.focus();
      }
      if (event.key === "Enter" || event.key === " ") {
        show(at, branch);
        pinned = true;
        const first = card.querySelector("button.alternative");
        if (first) first.focus();
      }
      if (event.key === "Escape") hide();
      if (next || move || ["Enter", " ", "Home", "End"].includes(event.key)) event.preventDefault();
    });
  }

  // Scrolls to an answer that begins where the reader cannot see it, as on a phone.
  function reveal(element) {
    const top = element.getBoundingClientRect().top;
    const above = document.querySelector(".answer.streaming");
    if (!above && (top > window.innerHeight - 80 || top < 0)) {
      const calm = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
      element.scrollIntoView({ block: "start", behavior: calm ? "auto" : "smooth" });
    }
  }

  // ---- the card -------------------------------------------------------------------------------

  const shown = (text) =>
    text.replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥") || "(part of a character)";
  const percent = (p) =>
    p > 0 && p < 0.001 ? "< 0.1 %" : p > 0.999 && p < 1 ? "> 99.9 %" : `${(100 * p).toFixed(1)} %`;

  function node(tag, className, text) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function show(token, branch) {
    clearTimeout(closing);
    if (owner === token && card && !card.hidden) return;
    if (!card) {
      card = node("div", "token-card");
      card.id = "token-card";
      card.setAttribute("role", "dialog");
      card.addEventListener("pointerenter", () => clearTimeout(closing));
      card.addEventListener("pointerleave", () => { if (!pinned) hideSoon(); });
      card.addEventListener("focusout", (event) => {
        if (!card.contains(event.relatedTarget) && event.relatedTarget !== owner) hideSoon();
      });
      card.addEventListener("keydown", keysOfCard);
      document.body.append(card);
      document.addEventListener("pointerdown", (event) => {
        if (!card.contains(event.target) && !(event.target.closest && event.target.closest(".token"))) hide();
      });
      window.addEventListener("scroll", () => owner && place(), { passive: true });
    }
    if (owner) owner.classList.remove("current");
    owner = token;
    pinned = false;
    owner.classList.add("current");
    fill(JSON.parse(token.dataset.token), branch);
    card.hidden = false;
    card.scrollTop = 0;
    place();
  }

  function fill(details, branch) {
    card.setAttribute("aria-label", `Token ${shown(details.text)}`);
    const head = node("div", "card-head");
    head.append(node("code", "card-token", shown(details.text)), node("b", "", percent(details.p)));
    const facts = node("dl", "card-facts");
    const fact = (name, value) => {
      const group = node("div");
      group.append(node("dt", "", name), node("dd", "", value));
      facts.append(group);
    };
    fact("rank", String(details.rank));
    fact("entropy", `${details.entropy.toFixed(2)} nats`);
    fact("as drawn", percent(details.kept));
    const list = node("div", "card-alternatives");
    for (const [id, text, raw, kept] of details.alternatives) {
      const chosen = id === details.id;
      const row = node("button", `alternative${chosen ? " chosen" : ""}${kept === 0 ? " cut" : ""}`);
      row.type = "button";
      row.append(node("code", "", shown(text)));
      const bars = node("span", "alternative-bars");
      for (const [kind, value] of [["raw", raw], ["kept", kept]]) {
        const bar = node("span", `bar ${kind}`);
        bar.style.width = `${100 * value}%`;
        bars.append(bar);
      }
      row.append(bars, node("span", "alternative-value", percent(raw)));
      row.setAttribute(
        "aria-label",
        `${shown(text)}, ${percent(raw)}, ${kept === 0 ? "cut off" : `${percent(kept)} as drawn`}. ` +
          (chosen ? "This is the token." : "Branch from here."));
      if (chosen) row.setAttribute("aria-current", "true");
      row.addEventListener("click", () => {
        if (chosen) return;
        const at = owner;
        hide();
        at.focus({ preventScroll: true });
        branch(details.place, id);
      });
      list.append(row);
    }
    const foot = node("p", "card-foot");
    foot.append(
      node("i", "key raw"), "raw", node("i", "key kept"), "after temperature and nucleus",
      node("span", "card-hint", "Click one to branch from here."));
    card.replaceChildren(head, facts, list, foot);
  }

  function keysOfCard(event) {
    const rows = [...card.querySelectorAll("button.alternative")];
    const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (move) {
      const next = rows[rows.indexOf(document.activeElement) + move];
      if (next) next.focus();
      event.preventDefault();
    }
    if (event.key === "Escape") {
      const at = owner;
      hide();
      if (at) at.focus();
    }
  }

  function place() {
    const boxes = owner.getClientRects();  // two, where the token goes on in the next line
    if (!boxes.length) return hide();
    const [first, last] = [boxes[0], boxes[boxes.length - 1]];
    const width = Math.min(340, window.innerWidth - 16);
    card.style.width = `${width}px`;
    const height = card.offsetHeight;
    const below = last.bottom + 6 + height < window.innerHeight || first.top < height + 12;
    card.style.left = `${Math.max(8, Math.min(last.left, window.innerWidth - width - 8))}px`;
    card.style.top = `${below ? last.bottom + 6 : first.top - height - 6}px`;
  }

  function hideSoon() {
    clearTimeout(closing);
    closing = setTimeout(hide, 220);
  }

  function hide() {
    clearTimeout(closing);
    if (owner) owner.classList.remove("current");
    if (card) card.hidden = true;
    owner = null;
    pinned = false;
  }

  // ---- rows that open something ---------------------------------------------------------------

  function rows(element, props, trigger) {
    element.addEventListener("click", (event) => {
      const button = event.target.closest("button[data-row]");
      if (button) trigger("open", { row: Number(button.dataset.row), tab: button.dataset.tab });
    });
  }

  // ---- links and downloads --------------------------------------------------------------------

  function link(values) {
    const url = new URL(window.location.href);
    for (const name of ["q", "left", "right", "style", "o", "answer", "form", "tab"]) url.searchParams.delete(name);
    for (const [name, value] of Object.entries(values)) {
      if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, value);
    }
    window.history.replaceState(window.history.state, "", url);
    return url.href;
  }

  async function copyLink(values) {
    const href = link(values);
    try {
      await navigator.clipboard.writeText(href);
      say("The link is copied.");
    } catch {
      say("The link is in the address bar.");
    }
  }

  function say(text) {
    let toast = document.getElementById("explorer-toast");
    if (!toast) {
      toast = node("div", "toast");
      toast.id = "explorer-toast";
      toast.setAttribute("role", "status");
      document.body.append(toast);
    }
    toast.textContent = text;
    toast.classList.add("visible");
    setTimeout(() => toast.classList.remove("visible"), 2500);
  }

  // `file` is {name, type, text} or {name, type, base64}.
  function download(file) {
    if (!file) return;
    const bytes = file.base64 ? Uint8Array.from(atob(file.base64), (c) => c.charCodeAt(0)) : file.text;
    const anchor = document.createElement("a");
    anchor.href = URL.createObjectURL(new Blob([bytes], { type: file.type }));
    anchor.download = file.name;
    anchor.click();
    setTimeout(() => URL.revokeObjectURL(anchor.href), 10000);
  }

  // A link with a question asks it, once the page has filled in what the link says.
  function openLink() {
    const found = new URLSearchParams(window.location.search);
    if (found.get("q")) press(found.get("o") ? "#choose-button" : "#ask-button");
  }

  // Presses the main button, of the tab that is open where none is named.
  function press(selector) {
    setTimeout(() => {
      const buttons = document.querySelectorAll(selector || "#ask-button, #choose-button");
      const button = [...buttons].find((one) => one.offsetParent !== null);
      if (button) button.click();
    }, 250);
  }

  return { answer, rows, copyLink, link, download, openLink, press, hide };
})();
window.explorer = explorer;
