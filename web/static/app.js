// @ts-check
/** Wires the page: address bar, socket, turns, composer, dialog. */

import { Session, readEntries, newMessageId } from './holdfast.js';
import { Conversation } from './conversation.js';
import { TurnView, UnsentView, sentence } from './view.js';
import * as memory from './memory.js';

const TAIL = 500; // entries to begin with; an answer has about one a token
const AT_BOTTOM_PX = 60;

/** @param {string} id @returns {any} */
const $ = (id) => document.getElementById(id);
const dom = {
  scroller: $('scroller'), turns: $('turns'), unsent: $('unsent'), welcome: $('welcome'), earlier: $('earlier'), earlierLine: $('earlier-line'),
  composer: $('composer'), text: $('text'), send: $('send'), stop: $('stop'), newest: $('newest'), announcer: $('announcer'),
  connection: $('connection'), connectionText: $('connection-text'), alert: $('alert'), dialog: $('dialog'),
};
const touch = matchMedia('(hover: none) and (pointer: coarse)');
const url = new URL('v1/ws', document.baseURI);
url.protocol = url.protocol === 'https:' ? 'wss:' : 'ws:';
url.hash = '';
url.search = '';

/** The session that is on the page, and everything that belongs to it alone. */
class Room {
  /** @param {string} name */
  constructor(name) {
    this.name = name;
    this.session = new Session({
      url: url.href, kind: 'session', name, tail: TAIL,
      onEntry: (e) => this.#entry(e),
      onStatus: (s) => this.#changed(this.conversation.applyStatus(s)),
      onState: (s) => showConnection(s),
      onAttached: (a) => { this.#firstHeld = Math.max(1, a.firstHeld); },
      onCaughtUp: () => this.#caughtUp(),
      onReset: () => this.#reset(),
      onDelayed: (id, refusal, ms) => this.#unsent.get(id)?.waiting(`${sentence(refusal.message)} Trying again in ${Math.ceil(ms / 1000)} s.`),
    });
    for (const message of memory.unsent(name)) this.#submit(message);
    this.session.start();
  }

  conversation = new Conversation();
  /** @type {Map<number, TurnView>} */ #views = new Map();
  /** @type {Map<string, UnsentView>} */ #unsent = new Map();
  /** @type {Set<number>} */ #dirty = new Set();
  #frame = false;
  #firstHeld = 1;
  #caught = false;
  #reading = false;
  #closed = false;
  #follow = true;

  leave() {
    this.#closed = true;
    this.session.close();
    dom.turns.replaceChildren();
    dom.unsent.replaceChildren();
    dom.earlierLine.hidden = true;
    dom.welcome.hidden = true;
    dom.newest.hidden = true;
    dom.stop.hidden = true;
  }

  /** @param {string} text */
  send(text) {
    const message = { id: newMessageId(), text };
    memory.keepUnsent(this.name, message);
    memory.rememberSession(this.name, this.conversation.turns.length ? '' : title(text));
    this.#submit(message);
    this.toNewest();
  }

  /** Stops the answer that runs. @returns {boolean} whether there was one */
  stop() {
    const live = this.conversation.open[0];
    if (live) this.session.stop(live.id);
    return Boolean(live);
  }

  toNewest() {
    this.#follow = true;
    this.#draw();
  }

  scrolled() {
    const s = dom.scroller;
    this.#follow = s.scrollHeight - s.scrollTop - s.clientHeight < AT_BOTTOM_PX;
    dom.newest.hidden = this.#follow;
  }

  /** The space for the turns changed: stay where we were. */
  resized() {
    if (this.#follow) dom.scroller.scrollTop = dom.scroller.scrollHeight;
  }

  // --- sending

  /** @type {import('./view.js').Actions} */
  #actions = {
    again: (text) => this.send(text),
    edit: (text) => { fillComposer(text); },
    stop: (turn) => this.session.stop(turn),
  };

  /** @param {memory.Unsent} message */
  #submit(message) {
    const view = new UnsentView(message.text, this.#actions);
    this.#unsent.set(message.id, view);
    dom.unsent.append(view.element);
    dom.welcome.hidden = true;
    this.session.submit(message.id, message.text).then(
      () => this.#sent(message.id),
      (refusal) => {
        memory.dropUnsent(this.name, message.id);
        view.refused(refusal.message, refusal.hint, () => this.#sent(message.id));
        this.#draw();
      },
    );
  }

  /** It is a turn now, or will be when its entry arrives. @param {string} id */
  #sent(id) {
    memory.dropUnsent(this.name, id);
    if (this.#closed) return;
    const view = this.#unsent.get(id);
    this.#unsent.delete(id);
    view?.element.remove();
    this.#draw();
  }

  // --- what arrives

  /** @param {import('./holdfast.js').Entry} entry */
  #entry(entry) {
    const turn = this.conversation.apply(entry);
    if (entry.kind === 'userMessage') this.#sent(entry.body.messageId);
    this.#changed(turn);
    if (this.#caught && turn && entry.kind === 'terminal') this.#announce(turn);
    if (entry.kind === 'state' && entry.body.key === 'title') this.#named(this.conversation.state('title'));
  }

  /** @param {import('./conversation.js').Turn|null} turn */
  #changed(turn) {
    if (turn) this.#dirty.add(turn.id);
    if (this.#caught) this.#draw();
  }

  #caughtUp() {
    this.#caught = true;
    const first = this.conversation.turns.find((t) => t.begun && t.text);
    this.#named(this.conversation.state('title') || (first ? title(first.text) : ''));
    if (this.conversation.neededFrom < this.conversation.first) this.earlier(0); // the page begins in mid-turn
    this.#draw();
  }

  #reset() {
    this.conversation = new Conversation();
    this.#views.clear();
    this.#dirty.clear();
    this.#caught = false;
    dom.turns.replaceChildren();
  }

  /** @param {string} words */
  #named(words) {
    if (words) memory.rememberSession(this.name, words);
    document.title = `${words || this.name} · Holdfast`;
  }

  /** Reads entries before the first, until every turn on the page is whole. @param {number} count at least so many */
  async earlier(count) {
    const cursor = this.session.cursor;
    if (this.#reading || !cursor) return;
    this.#reading = true;
    dom.earlier.textContent = 'Reading…';
    try {
      const c = this.conversation;
      for (let from = c.first - count; from < c.first || c.neededFrom < c.first;) {
        const first = Math.max(this.#firstHeld, Math.min(from, c.neededFrom));
        const last = c.first - 1;
        if (first > last) break;
        const entries = await readEntries({ url: url.href, address: this.session.address, cursor, first, last });
        if (this.#closed || c !== this.conversation) return;
        for (const e of entries.reverse()) this.#changed(c.apply(e));
        from = c.first;
      }
    } catch (e) {
      dom.announcer.textContent = `Earlier messages could not be read: ${/** @type {Error} */ (e).message}`;
    } finally {
      this.#reading = false;
      dom.earlier.textContent = 'Earlier messages';
    }
  }

  // --- drawing, at most once a frame

  #draw() {
    if (this.#frame) return;
    this.#frame = true;
    const go = () => {
      this.#frame = false;
      if (!this.#closed) this.#drawNow();
    };
    if (document.hidden) setTimeout(go, 200);
    else requestAnimationFrame(go);
  }

  #drawNow() {
    const { scroller } = dom;
    const fromEnd = scroller.scrollHeight - scroller.scrollTop;
    const above = this.#placeViews();
    const open = this.conversation.open;
    for (const t of open) this.#dirty.add(t.id); // whose turn it is may have changed
    for (const id of this.#dirty) {
      const turn = this.conversation.turn(id);
      const view = this.#views.get(id);
      if (turn && view) view.update(turn, open[0] === turn);
    }
    this.#dirty.clear();
    dom.stop.hidden = open.length === 0;
    dom.welcome.hidden = !this.#caught || this.#views.size > 0 || this.#unsent.size > 0;
    dom.earlierLine.hidden = !this.#caught || this.conversation.first <= this.#firstHeld;
    if (this.#follow) scroller.scrollTop = scroller.scrollHeight;
    else if (above) scroller.scrollTop = scroller.scrollHeight - fromEnd; // what was read earlier went in above
    dom.newest.hidden = this.#follow || scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < AT_BOTTOM_PX;
  }

  /** Gives every turn that can be shown a view in its place. @returns {boolean} whether any went in above others */
  #placeViews() {
    let above = false;
    /** @type {Element|null} */ let next = null;
    for (const turn of this.conversation.turns.reverse()) {
      let view = this.#views.get(turn.id);
      if (!view && turn.begun) {
        view = new TurnView(turn, this.#actions);
        this.#views.set(turn.id, view);
        this.#dirty.add(turn.id);
        dom.turns.insertBefore(view.element, next);
        above = above || next !== null;
      }
      if (view) next = view.element;
    }
    return above;
  }

  /** One announcement an answer, when it is whole: a screen reader is not read tokens. @param {import('./conversation.js').Turn} turn */
  #announce(turn) {
    const how = { OUTCOME_STOPPED: 'Stopped. ', OUTCOME_FAILED: `Failed: ${turn.terminal.error?.message || ''}. `, OUTCOME_BLOCKED: 'Withheld. ' }[turn.terminal.outcome] || '';
    dom.announcer.textContent = how + turn.answer;
  }
}

/** @param {string} text @returns {string} */
function title(text) {
  const line = text.trim().split('\n', 1)[0];
  return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line;
}

// --- connection

let quietTimer = 0;

/** @param {import('./holdfast.js').State} state */
function showConnection(state) {
  clearTimeout(quietTimer);
  dom.alert.hidden = state.phase !== 'failed';
  if (state.phase === 'failed' && state.error) {
    $('alert-why').textContent = sentence(state.error.message);
    $('alert-hint').textContent = sentence(state.error.hint);
    dom.scroller.scrollTop = 0;
  }
  if (state.phase === 'open' || state.phase === 'failed' || state.phase === 'closed') {
    dom.connection.hidden = true;
    return;
  }
  const words = navigator.onLine ? (state.phase === 'waiting' ? 'Reconnecting…' : 'Connecting…') : 'Offline';
  if (!dom.connection.hidden) {
    // Between tries the words stay, so that nothing flickers.
    if (dom.connectionText.textContent === 'Connecting…' || words === 'Offline') dom.connectionText.textContent = words;
    return;
  }
  // A break that heals at once is not worth a word.
  quietTimer = setTimeout(() => {
    dom.connectionText.textContent = words;
    dom.connection.hidden = false;
  }, 400);
}

/** @type {Room|null} */
let room = null;
for (const event of ['online', 'pageshow']) addEventListener(event, () => room?.session.wake());
addEventListener('offline', () => {
  dom.connectionText.textContent = 'Offline';
  room?.session.wake(); // finds out
});
document.addEventListener('visibilitychange', () => !document.hidden && room?.session.wake());
$('alert-retry').onclick = () => room?.session.start();

// --- the address: #/NAME, which no server or proxy sees

function nameInAddress() {
  const m = /^#\/(.+)$/.exec(location.hash);
  try {
    return m ? decodeURIComponent(m[1]) : '';
  } catch {
    return '';
  }
}

/** @param {string} name @param {boolean} [replace] */
function go(name, replace) {
  const hash = `#/${encodeURIComponent(name)}`;
  if (replace) history.replaceState(null, '', hash);
  else history.pushState(null, '', hash);
  enter();
}

function enter() {
  const name = nameInAddress();
  if (!name) {
    go(memory.recentSessions()[0]?.name || memory.newName(), true);
    return;
  }
  if (room?.name === name) return;
  if (room) {
    memory.keepDraft(room.name, dom.text.value);
    room.leave();
  }
  $('session-name').textContent = name;
  $('welcome-name').textContent = name;
  document.title = `${name} · Holdfast`;
  fillComposer(memory.draft(name), !touch.matches);
  room = new Room(name);
}
addEventListener('hashchange', enter);
addEventListener('popstate', enter);

// --- composer

/** @param {string} text @param {boolean} [focus] */
function fillComposer(text, focus = true) {
  dom.text.value = text;
  fit();
  if (focus) dom.text.focus();
}

/** As tall as its text, up to what the style allows. */
function fit() {
  dom.text.style.height = 'auto';
  dom.text.style.height = `${dom.text.scrollHeight}px`;
  dom.send.disabled = dom.text.value.trim() === '';
  room?.resized();
}

dom.text.addEventListener('input', fit);
dom.text.addEventListener('change', () => room && memory.keepDraft(room.name, dom.text.value));
addEventListener('pagehide', () => room && memory.keepDraft(room.name, dom.text.value));
dom.text.enterKeyHint = touch.matches ? 'enter' : 'send';
dom.text.addEventListener('keydown', (/** @type {KeyboardEvent} */ e) => {
  if (e.key === 'Enter' && !e.shiftKey && !e.isComposing && !touch.matches) {
    e.preventDefault();
    dom.composer.requestSubmit();
  } else if (e.key === 'PageUp' || e.key === 'PageDown') {
    e.preventDefault(); // the text is short, the conversation is long
    dom.scroller.scrollBy(0, (e.key === 'PageUp' ? -0.9 : 0.9) * dom.scroller.clientHeight);
  }
});
dom.composer.addEventListener('submit', (/** @type {Event} */ e) => {
  e.preventDefault();
  const text = dom.text.value.trim();
  if (!text || !room) return;
  memory.keepDraft(room.name, '');
  fillComposer('');
  room.send(text);
});

function stop() {
  if (!room?.stop()) return;
  dom.announcer.textContent = 'Stopping';
  dom.text.focus();
}
dom.stop.onclick = stop;
addEventListener('keydown', (e) => {
  if (e.key === 'Escape' && !dom.dialog.open && !e.isComposing) stop();
});

// --- scrolling

dom.scroller.addEventListener('scroll', () => room?.scrolled(), { passive: true });
dom.newest.onclick = () => {
  room?.toNewest();
  if (!touch.matches) dom.text.focus();
};
dom.earlier.onclick = () => room?.earlier(TAIL);
new ResizeObserver(() => room?.resized()).observe(dom.scroller);

// A virtual keyboard that only covers the page (Safari) is seen by the visual viewport alone.
const viewport = window.visualViewport;
if (viewport) {
  const fitViewport = () => {
    const covered = viewport.scale === 1 && window.innerHeight - viewport.height > 80;
    document.documentElement.style.setProperty('--page-height', covered ? `${viewport.height}px` : '100dvh');
    document.documentElement.classList.toggle('keyboard', covered);
    if (covered) window.scrollTo(0, 0);
  };
  viewport.addEventListener('resize', fitViewport);
  viewport.addEventListener('scroll', fitViewport);
}

// --- copying

document.addEventListener('click', async (e) => {
  const button = /** @type {Element} */ (e.target).closest?.('button[data-copy]');
  if (!(button instanceof HTMLElement)) return;
  const turn = Number(button.closest('article')?.dataset.turn);
  const text = button.dataset.copy === 'code' ? button.closest('figure')?.querySelector('code')?.textContent : room?.conversation.turn(turn)?.answer;
  const done = await copy(text || '');
  button.textContent = done ? 'Copied' : 'Not copied';
  dom.announcer.textContent = button.textContent;
  setTimeout(() => { button.textContent = 'Copy'; }, 1500);
});

/** @param {string} text @returns {Promise<boolean>} */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // No clipboard API over plain HTTP from another machine: the old way.
    const area = document.createElement('textarea');
    area.value = text;
    area.className = 'unseen';
    document.body.append(area);
    area.select();
    const done = document.execCommand('copy');
    area.remove();
    return done;
  }
}

// --- dialog of sessions

function showDialog() {
  const list = memory.recentSessions();
  $('recent').replaceChildren(...list.map((s) => {
    const item = document.createElement('li');
    const link = document.createElement('a');
    link.href = `#/${encodeURIComponent(s.name)}`;
    link.onclick = () => dom.dialog.close();
    if (s.name === room?.name) link.setAttribute('aria-current', 'page');
    const words = document.createElement('span');
    words.className = 'title';
    words.textContent = s.title || 'Nothing written yet';
    const name = document.createElement('span');
    name.className = 'name';
    name.textContent = s.name;
    link.append(words, ' ', name);
    const forget = document.createElement('button');
    forget.type = 'button';
    forget.className = 'quiet';
    forget.textContent = 'Forget';
    forget.setAttribute('aria-label', `Forget ${s.name} on this device; the server keeps it`);
    forget.onclick = () => {
      memory.forgetSession(s.name);
      item.remove();
      $('open-name').focus();
    };
    item.append(link, forget);
    return item;
  }));
  $('open-error').textContent = '';
  $('open-name').value = '';
  dom.dialog.showModal();
}
$('sessions').onclick = showDialog;
$('dialog-close').onclick = () => dom.dialog.close();
for (const id of ['new', 'dialog-new']) {
  $(id).onclick = () => {
    dom.dialog.close();
    go(memory.newName());
  };
}
$('open').addEventListener('submit', (/** @type {Event} */ e) => {
  const name = $('open-name').value.trim();
  e.preventDefault();
  if (!name || /[\p{C}/]/u.test(name)) {
    $('open-error').textContent = name ? 'A name has no slash and no control characters.' : 'Write a name first.';
    return;
  }
  dom.dialog.close();
  go(name);
});
dom.dialog.addEventListener('click', (/** @type {Event} */ e) => e.target === dom.dialog && dom.dialog.close());
dom.dialog.addEventListener('close', () => dom.text.focus());

enter();
