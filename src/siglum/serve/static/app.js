// The page: what is asked, what is found, and the beam between the two. It speaks with the service it came from alone.

const $ = (id) => document.getElementById(id);
const K = 24, SAMPLE = 72, LARGE = 3 << 20, SIDE = 1280;
const KIND = ["pictures", "texts", "pictures with text"];
const PART = { log_probability: "decoder", geometry: "geometry", prior: "prior", oracle: "oracle" };

const state = {
  about: null,
  picture: null, // {data, url, name}: a picture of the person's own, in base64
  item: null, // an item of the index to begin from
  omega: null, beam: null, // null: as the run has it
  target: null, // the item that is followed through the beam
  asked: null, // the query whose results are shown
};
let searching = null, following = null, key = sessionStorage.getItem("siglum-key");

// ---------------------------------------------------------------- speaking with the service

async function call(path, body, { method = body ? "POST" : "GET", signal } = {}) {
  const headers = { ...(body && { "content-type": "application/json" }), ...(key && { authorization: `Bearer ${key}` }) };
  const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal });
  if (answer.status === 401) {
    await askForKey();
    return call(path, body, { method, signal });
  }
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(found.error?.message ?? `The service answers ${answer.status}.`);
  return found;
}

let asking = null;
function askForKey() {
  asking ??= new Promise((done) => {
    $("key").showModal();
    $("key-form").onsubmit = () => {
      key = $("key-value").value.trim();
      sessionStorage.setItem("siglum-key", key);
      $("key-value").value = "";
      asking = null;
      done();
    };
  });
  return asking;
}

async function show(image, url, side) {
  const address = `${url}${url.includes("?") ? "&" : "?"}side=${side}`;
  if (!key) {
    image.src = address;
    return;
  }
  const answer = await fetch(address, { headers: { authorization: `Bearer ${key}` } });
  if (!answer.ok) return;
  image.onload = () => URL.revokeObjectURL(image.src);
  image.src = URL.createObjectURL(await answer.blob());
}

// ---------------------------------------------------------------- what is asked

function query() {
  const text = $("text").value.trim();
  const asked = {};
  if (text) asked.text = text;
  if (state.picture) asked.image = state.picture.data;
  else if (state.item) asked.item = state.item.id;
  return Object.keys(asked).length ? asked : null;
}

function options() {
  const given = {};
  if (state.omega !== null) given.omega = state.omega;
  if (state.beam !== null) given.beam = state.beam;
  const boxes = [...$("kinds").querySelectorAll("input")], on = boxes.filter((box) => box.checked);
  if (state.about?.kinds && on.length < boxes.length) given.kinds = on.map((box) => box.value);
  return given;
}

async function search() {
  const asked = query();
  if (!asked) return browse();
  searching?.abort();
  const { signal } = (searching = new AbortController());
  const how = options(), { omega, beam, ...rest } = how;
  const without = asked.item && !asked.text ? [asked.item] : [];
  const begun = performance.now();
  $("try").hidden = true;
  $("results").setAttribute("aria-busy", "true");
  try {
    const body = { queries: [asked], k: K, without, ...how, ...($("parts").checked && { parts: true }) };
    const dense = $("dense").checked ? call("/dense", { queries: [asked], k: K, without, ...rest }, { signal }) : null;
    const [found, beside] = await Promise.all([call("/search", body, { signal }), dense]);
    const seconds = (performance.now() - begun) / 1000, hits = found.results[0];
    state.asked = asked;
    list($("grid"), hits);
    compare(hits, beside?.results[0]);
    const shown = $("grid").querySelectorAll("li:not([hidden])").length;
    tell(shown ? `${count(shown, "result")} of ${found.items.toLocaleString()} items, ${seconds.toFixed(2)} s`
      : "Nothing was found. Other words, or a wider beam, may find something.");
  } catch (error) {
    if (error.name !== "AbortError") fail(error);
  } finally {
    if (searching?.signal === signal) $("results").removeAttribute("aria-busy");
  }
}

// With nothing asked, a few items to begin with.
async function browse() {
  searching?.abort();
  state.asked = null;
  try {
    const found = await call(`/items?limit=${SAMPLE}`);
    if (!state.settled) settle(found.items);
    const some = found.items.filter((_, place) => found.items.length <= K || place % 3 === Math.floor(place / 3) % 3);
    list($("grid"), some.slice(0, K));
    compare(null);
    tell(found.total ? `A few of the ${found.total.toLocaleString()} items` : "There are no items yet.");
    suggest(found.items);
  } catch (error) {
    fail(error);
  }
}

/** Where there are pictures, words look for these first. */
function settle(items) {
  state.settled = true;
  if (items.some((item) => item.image)) $("kinds").querySelector("[value=text]").checked = false;
}

function suggest(items) {
  const texts = [...new Set(items.map((item) => item.text).filter(Boolean))].sort((a, b) => a.length - b.length).slice(0, 3);
  $("try").replaceChildren("Try", ...texts.map((text) => {
    const button = make("button", { type: "button", textContent: text, title: text });
    button.onclick = () => ask({ text });
    return button;
  }));
  $("try").hidden = !texts.length || !state.about.takes.text;
}

/** Ask for something else: words, a picture, or an item. */
function ask({ text = "", item = null, picture = null }, remember = true) {
  $("text").value = text;
  hold(picture, item);
  closeBeam();
  if (remember) history.pushState({ text, item }, "", text || item ? `#${new URLSearchParams({ ...(text && { q: text }), ...(item && { like: item.id }) })}` : location.pathname);
  return search();
}

function hold(picture, item) {
  if (state.picture && state.picture !== picture) URL.revokeObjectURL(state.picture.url);
  state.picture = picture;
  state.item = picture ? null : item;
  const held = picture ?? item, image = $("asked-image");
  $("asked").hidden = !held;
  image.hidden = !(picture || item?.image);
  image.removeAttribute("src");
  if (picture) image.src = picture.url;
  else if (item?.image) show(image, item.image, 96);
  $("asked-name").textContent = picture ? picture.name : item ? item.text ?? item.id : "";
  $("text").placeholder = held ? "Say what should be different" : placeholder();
}

function placeholder() {
  const { text, image } = state.about?.takes ?? { text: true, image: true };
  if (text && image) return matchMedia("(max-width: 720px)").matches ? "Describe it" : "Describe it, or drop a picture here";
  return text ? "Describe it" : image ? "Drop a picture here" : "This run has no encoder: browse its items";
}

async function take(file) {
  if (!file?.type.startsWith("image/")) return fail(new Error("That is no picture."));
  if (!state.about.takes.image) return fail(new Error("This run takes no pictures."));
  try {
    const small = file.size > LARGE ? await shrink(file) : file;
    const data = await base64(small);
    await ask({ text: $("text").value, picture: { data, url: URL.createObjectURL(small), name: file.name || "pasted picture" } }, false);
  } catch (error) {
    fail(error);
  }
}

async function shrink(file) {
  const whole = await createImageBitmap(file), scale = Math.min(1, SIDE / Math.max(whole.width, whole.height));
  const canvas = make("canvas", { width: Math.round(scale * whole.width), height: Math.round(scale * whole.height) });
  canvas.getContext("2d").drawImage(whole, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.92));
}

function base64(blob) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => failed(new Error("The picture could not be read."));
    reader.readAsDataURL(blob);
  });
}

// ---------------------------------------------------------------- what is found

function list(grid, hits, missed = new Set()) {
  grid.replaceChildren(...hits.map((hit) => card(hit, missed)));
  grid.scrollTop = 0;
}

function card(hit, missed) {
  const li = $("card").content.cloneNode(true).firstElementChild, part = (name) => li.querySelector(`.${name}`);
  const name = hit.text ?? hit.id;
  li.dataset.id = hit.id;
  if (hit.image) {
    const image = make("img", { alt: hit.text ? "" : `Picture ${hit.id}`, loading: "lazy", decoding: "async", width: 320, height: 240 });
    show(image, hit.image, 320);
    part("face").append(image);
    part("caption").textContent = hit.text ?? "";
  } else {
    part("face").classList.add("words");
    part("face").append(make("blockquote", { textContent: hit.text ?? hit.id }));
  }
  part("caption").hidden = !part("caption").textContent;
  part("id").textContent = hit.id;
  part("rank").hidden = !hit.rank;
  if (hit.rank) {
    part("rank").firstElementChild.textContent = hit.rank;
    const near = hit.similarity;
    part("near").textContent = near === null ? "" : `${Math.round(100 * near)} % alike`;
    li.hidden = near !== null && 100 * near < Number($("least").value);
    li.dataset.near = near ?? 1;
  }
  part("mark").hidden = !missed.has(hit.id);
  if (missed.has(hit.id)) part("follow").textContent = "Why missed?";
  scores(part("scores"), hit);
  act(li, hit, name);
  return li;
}

function scores(dl, hit) {
  if (!$("parts").checked || !hit.parts) return;
  const rows = { score: hit.score, ...Object.fromEntries(Object.entries(hit.parts).map(([n, v]) => [PART[n] ?? n, v])) };
  for (const [name, value] of Object.entries(rows)) {
    dl.append(make("dt", { textContent: name }), make("dd", { textContent: value.toFixed(2).replace("-", "−") }));
  }
  dl.hidden = false;
}

function act(li, hit, name) {
  const part = (one) => li.querySelector(`.${one}`), takes = state.about.takes;
  const can = hit.image ? takes.image : takes.text;
  part("like").setAttribute("aria-label", `More like this: ${name}`);
  part("like").hidden = !can;
  part("like").onclick = () => ask({ item: hit });
  part("follow").setAttribute("aria-label", `${part("follow").textContent} Follow ${name} through the beam`);
  part("follow").hidden = !state.asked && !query();
  part("follow").onclick = () => follow(hit);
  part("remove").hidden = !state.about.writes;
  part("remove").setAttribute("aria-label", `Remove ${name}`);
  part("remove").onclick = (event) => remove(event.currentTarget, hit);
  const edit = part("edit"), input = edit.querySelector("input");
  part("change").hidden = !can || !takes.text;
  part("change").setAttribute("aria-label", `But … search for ${name}, changed in words`);
  part("change").onclick = () => {
    edit.hidden = !edit.hidden;
    part("change").setAttribute("aria-expanded", String(!edit.hidden));
    if (!edit.hidden) input.focus();
  };
  input.setAttribute("aria-label", `Search for ${name}, but changed in words`);
  edit.onsubmit = (event) => {
    event.preventDefault();
    if (input.value.trim()) ask({ item: hit, text: input.value.trim() });
  };
}

function compare(hits, dense) {
  $("beside").hidden = !dense;
  $("results").classList.toggle("two", Boolean(dense));
  if (!dense) return;
  const found = new Set(hits.map((hit) => hit.id)), missed = new Set(dense.filter((hit) => !found.has(hit.id)).map((hit) => hit.id));
  list($("beside-grid"), dense, missed);
  $("own-title").textContent = "By codes";
  $("own-note").textContent = "What the beam search over codes finds.";
  $("beside-note").textContent = missed.size
    ? `${missed.size} of these ${dense.length} are not among the ${hits.length} that codes find.` : "Codes find all of these.";
}

async function remove(button, hit) {
  if (button.dataset.sure !== "yes") {
    button.dataset.sure = "yes";
    button.textContent = "Really?";
    setTimeout(() => { button.dataset.sure = ""; button.textContent = "✕"; }, 4000);
    return;
  }
  try {
    await call(`/items/${encodeURIComponent(hit.id)}`, null, { method: "DELETE" });
    await search();
    tell(`Removed ${hit.id}.`);
  } catch (error) {
    fail(error);
  }
}

// ---------------------------------------------------------------- the beam

async function follow(hit, quiet = false) {
  const asked = query() ?? state.asked;
  if (!asked) return;
  following?.abort();
  const { signal } = (following = new AbortController());
  state.target = hit;
  for (const li of document.querySelectorAll(".card")) li.classList.toggle("followed", li.dataset.id === hit.id);
  try {
    const how = options();
    const told = await call("/explain", { query: asked, target: hit.id, best: 5, pruned: 3, ...how }, { signal });
    $("beam-view").hidden = false;
    $("beam-title").textContent = `The beam, following “${short(hit.text ?? hit.id, 90)}”`;
    $("beam-image").hidden = !hit.image;
    if (hit.image && $("beam-image").dataset.of !== hit.image) show($("beam-image"), hit.image, 160);
    $("beam-image").dataset.of = hit.image ?? "";
    const [finding, ...why] = told.verdict, verdict = $("verdict");
    verdict.replaceChildren(finding.replace(hit.id, "It"), make("small", { textContent: why.join(" ") }));
    verdict.className = `verdict ${told.fell_at === null ? "lives" : "falls"}`;
    draw(told);
    if (!quiet) {
      $("beam-view").scrollIntoView({ block: "start" });
      $("beam-title").focus({ preventScroll: true });
    }
  } catch (error) {
    if (error.name !== "AbortError") fail(error);
  }
}

function closeBeam() {
  following?.abort();
  state.target = null;
  $("beam-view").hidden = true;
  for (const li of document.querySelectorAll(".followed")) li.classList.remove("followed");
}

/** Levels whose prefix of the target holds one item alone are told in one column, by the last of them. */
function fold(levels) {
  const groups = [];
  for (const level of levels) {
    const last = groups.at(-1)?.at(-1);
    const single = last && groups.length > 1 && last.target.items === 1 && groups.at(-2).at(-1).target.items >= 1;
    if (single && last.target.kept === level.target.kept) groups.at(-1).push(level);
    else groups.push([level]);
  }
  return groups;
}

function draw(told) {
  const columns = $("columns"), boxes = [];
  const kinds = state.about.kinds;
  const made = fold(told.levels).map((group, place) => {
    const level = group.at(-1), first = group[0];
    const box = make("section", { className: "level" });
    const name = level.level === 0 ? "Kind" : first === level ? `Level ${level.level}` : `Levels ${first.level}–${level.level}`;
    const head = make("h3", { textContent: name });
    head.append(make("small", { textContent: `${level.kept.toLocaleString()} of ${level.candidates.toLocaleString()} survive` }));
    box.append(head);
    const mine = (prefix) => prefix.codes.join() === level.target.codes.join();
    const all = new Map([...level.best, level.last, ...level.pruned, level.target].map((prefix) => [prefix.codes.join(), prefix]));
    const rows = [...all.values()].sort((a, b) => b.kept - a.kept || a.rank - b.rank);
    boxes.push(new Map());
    let seen = 0, cut = false;
    for (const prefix of rows) {
      if (!prefix.kept && !cut) {
        if (level.kept > seen) box.append(gap(level.kept - seen, "survive"));
        box.append(make("p", { className: "cut", textContent: "the beam cuts here" }));
        seen = level.kept;
        cut = true;
      } else if (prefix.rank - 1 > seen) box.append(gap(prefix.rank - 1 - seen, cut ? "pruned" : "survive"));
      const shown = row(prefix, told.items, mine(prefix), level.level === 0 && kinds);
      boxes[place].set(prefix.codes.join(), { shown, prefix, mine: mine(prefix) });
      box.append(shown);
      seen = Math.max(seen, prefix.rank);
    }
    const left = (cut ? level.candidates : level.kept) - seen;
    if (left > 0) box.append(gap(left, cut ? "pruned" : "survive"));
    if (!cut && level.candidates > level.kept) box.append(make("p", { className: "cut", textContent: "the beam cuts here" }), gap(level.candidates - level.kept, "pruned"));
    return box;
  });
  const wires = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  wires.setAttribute("aria-hidden", "true");
  columns.replaceChildren(wires, ...made);
  wire(wires, boxes);
}

function gap(number, what) {
  return make("p", { className: "more", textContent: `… ${number.toLocaleString()} more ${what}` });
}

function row(prefix, items, mine, isKind) {
  const button = make("button", { type: "button", className: `prefix${mine ? " target" : ""}${prefix.kept ? "" : " pruned"}` });
  const known = items[prefix.examples[0]] ?? {}, code = isKind ? KIND[prefix.codes[0]] : prefix.codes.at(-1);
  if (known.image) {
    const image = make("img", { alt: "", width: 40, height: 40 });
    show(image, known.image, 96);
    button.append(image);
  } else button.append(make("span", { className: "glyph", textContent: short(known.text ?? prefix.examples[0], 60) }));
  const words = make("div", {});
  words.append(make("b", { textContent: isKind ? "" : `code ${code}` }), isKind ? make("b", { textContent: code }) : "",
    make("span", { textContent: `rank ${prefix.rank.toLocaleString()} · ${number(prefix.score)}` }),
    make("span", { textContent: count(prefix.items, "item") }));
  button.append(words);
  const fate = mine ? (prefix.kept ? "the target, survives" : "the target, pruned") : prefix.kept ? "survives" : "pruned";
  const parts = Object.entries(prefix.parts).map(([name, value]) => `${PART[name] ?? name} ${number(value)}`).join(", ");
  button.title = `${fate}: ${parts}; holds ${short(known.text ?? prefix.examples[0], 120)}`;
  button.setAttribute("aria-label", `Code ${code}, rank ${prefix.rank}, ${count(prefix.items, "item")}, ${fate}; follow ${short(known.text ?? prefix.examples[0], 60)}`);
  button.onclick = () => follow({ id: prefix.examples[0], ...known }, true);
  return button;
}

/** Draw a line from every prefix to the one it continues, where that is shown. */
function wire(svg, boxes) {
  const area = $("columns");
  svg.setAttribute("width", area.scrollWidth);
  svg.setAttribute("height", area.scrollHeight);
  const begin = area.getBoundingClientRect(), left = begin.left - area.scrollLeft + area.clientLeft, top = begin.top - area.scrollTop + area.clientTop;
  for (let place = 1; place < boxes.length; place++) {
    for (const { shown, prefix, mine } of [...boxes[place].values()].sort((a, b) => a.mine - b.mine)) {
      const parent = [...boxes[place - 1].entries()].find(([codes]) => prefix.codes.join().startsWith(`${codes},`))?.[1];
      if (!parent) continue;
      const to = shown.getBoundingClientRect(), from = parent.shown.getBoundingClientRect();
      const [x0, y0, x1, y1] = [from.right - left, from.top + from.height / 2 - top, to.left - left, to.top + to.height / 2 - top];
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("d", `M${x0} ${y0} C${x0 + 14} ${y0} ${x1 - 14} ${y1} ${x1} ${y1}`);
      if (mine) path.setAttribute("class", prefix.kept ? "mine" : "lost");
      svg.append(path);
    }
  }
}

// ---------------------------------------------------------------- sliders

function most(name) {
  const { search: own, limits } = state.about;
  return name === "omega" ? Math.max(4 * own.omega, 10) : Math.min(limits.max_beam, Math.max(4 * own.beam, 100));
}

function valueOf(name, place) {
  if (name === "omega") return Math.round(most(name) * (place / 100) ** 2 * 10) / 10;
  return Math.round(most(name) ** (place / 100));
}

function placeOf(name, value) {
  return name === "omega" ? Math.round(100 * Math.sqrt(value / most(name))) : Math.round((100 * Math.log(Math.max(1, value))) / Math.log(most(name)));
}

function showSliders() {
  for (const name of ["omega", "beam"]) {
    const value = state[name] ?? state.about.search[name];
    for (const id of [name, `beam-${name}`]) {
      $(id).value = placeOf(name, value);
      $(id).setAttribute("aria-valuetext", String(value));
      $(`${id}-out`).textContent = value.toLocaleString();
    }
  }
}

let soon = 0;
function slide(name, place) {
  state[name] = valueOf(name, Number(place));
  showSliders();
  clearTimeout(soon);
  soon = setTimeout(() => {
    if (query()) search();
    if (state.target) follow(state.target, true);
  }, 60);
}

// ---------------------------------------------------------------- small things

function make(tag, values) {
  return Object.assign(document.createElement(tag), values);
}
function short(text, length) {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}
function count(number, noun) {
  return `${number.toLocaleString()} ${noun}${number === 1 ? "" : "s"}`;
}
function number(value) {
  return value.toFixed(1).replace("-", "−");
}
function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
function tell(text) {
  $("status").textContent = text;
  $("status").classList.remove("bad");
}
function fail(error) {
  $("status").textContent = sentence(error.message);
  $("status").classList.add("bad");
}

async function add() {
  const file = $("add-file").files[0], item = { id: $("add-id").value.trim(), text: $("add-text").value.trim() || null };
  try {
    if (file) item.image = await base64(file.size > LARGE ? await shrink(file) : file);
    const done = await call("/items", { items: [item] });
    $("add").close();
    $("add-form").reset();
    await search();
    tell(`Added ${item.id}; there are ${done.items.toLocaleString()} items now.`);
  } catch (error) {
    $("add-error").textContent = sentence(error.message);
  }
}

function listen() {
  $("search").onsubmit = (event) => {
    event.preventDefault();
    ask({ text: $("text").value.trim(), item: state.item, picture: state.picture });
  };
  $("text").oninput = () => { if (!$("text").value && !state.picture && !state.item) ask({}); };
  $("file").onchange = () => { take($("file").files[0]); $("file").value = ""; };
  $("asked-drop").onclick = () => { ask({ text: $("text").value }); $("text").focus(); };
  for (const box of [...$("kinds").querySelectorAll("input"), $("dense"), $("parts")]) box.onchange = () => search();
  for (const name of ["omega", "beam"]) for (const id of [name, `beam-${name}`]) $(id).oninput = () => slide(name, $(id).value);
  $("least").oninput = () => {
    $("least-out").textContent = `${$("least").value} %`;
    for (const li of document.querySelectorAll(".card[data-near]")) li.hidden = 100 * li.dataset.near < Number($("least").value);
  };
  $("beam-close").onclick = () => { const id = state.target?.id; closeBeam(); document.querySelector(`.card[data-id="${CSS.escape(id ?? "")}"] .follow`)?.focus(); };
  $("add-open").onclick = () => { $("add-error").textContent = ""; $("add").showModal(); };
  $("add-cancel").onclick = () => $("add").close();
  $("add-form").onsubmit = (event) => { event.preventDefault(); add(); };
  addEventListener("dragover", (event) => { event.preventDefault(); $("box").classList.add("over"); });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) $("box").classList.remove("over"); });
  addEventListener("drop", (event) => { event.preventDefault(); $("box").classList.remove("over"); if (event.dataTransfer.files[0]) take(event.dataTransfer.files[0]); });
  addEventListener("paste", (event) => { const file = [...(event.clipboardData?.files ?? [])][0]; if (file) { event.preventDefault(); take(file); } });
  addEventListener("popstate", recall);
  addEventListener("keydown", (event) => { if (event.key === "Escape" && !$("beam-view").hidden && !document.querySelector("dialog[open]")) closeBeam(); });
  addEventListener("resize", () => { if (state.target && !$("beam-view").hidden) follow(state.target, true); });
}

/** Ask what the address says, as it is when somebody comes back or follows a link. */
async function recall() {
  const said = new URLSearchParams(location.hash.slice(1)), like = said.get("like");
  let item = null;
  if (like) item = await call(`/items/${encodeURIComponent(like)}`).catch(() => null);
  await ask({ text: said.get("q") ?? "", item }, false);
}

async function begin() {
  try {
    state.about = await call("/about");
  } catch (error) {
    return fail(error);
  }
  const { about } = state, { text, image } = about.takes;
  document.title = `${about.run} · Siglum`;
  $("run").textContent = `${about.run} · ${count(about.items, "item")}`;
  $("kinds").hidden = !about.kinds;
  $("dense-label").hidden = !about.dense;
  $("add-open").hidden = !about.writes || !(text || image);
  $("pick").hidden = !image;
  $("text").disabled = !text;
  $("text").placeholder = placeholder();
  $("least-out").textContent = "0 %";
  showSliders();
  listen();
  if (location.hash.length > 1) settle((await call(`/items?limit=${SAMPLE}`).catch(() => ({ items: [] }))).items);
  await recall();
}

begin();
