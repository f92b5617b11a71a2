// @ts-check
/**
 * Entries in, turns out. No DOM and no network, so that what is shown is a function of what was read.
 */

/** @typedef {import('./holdfast.js').Entry} Entry */
/** @typedef {import('./holdfast.js').Status} Status */

/**
 * One submission and everything until its terminal entry.
 * @typedef {object} Turn
 * @property {number} id offset of its first entry
 * @property {boolean} begun its user message was read
 * @property {string} messageId
 * @property {string} text of the user
 * @property {number} time
 * @property {boolean} erased its user message was destroyed on request
 * @property {string} answer so far
 * @property {{offset: number, text: string}[]} chunks
 * @property {{offset: number, body: any}[]} tools calls that the model asked for
 * @property {any} attempt the newest, or null
 * @property {number} attempts
 * @property {any} terminal or null while the turn is open
 * @property {Status|null} status
 */

/** The turns of a session, from entries in any order without repeats. */
export class Conversation {
  /** @type {Map<number, Turn>} */ #turns = new Map();
  /** @type {Map<string, {offset: number, value: string}>} */ #state = new Map();
  /** @type {Status|null} of a turn that was not read yet */ #early = null;
  /** @type {number} lowest offset read; 0 before the first */ first = 0;

  /** @returns {Turn[]} oldest first */
  get turns() {
    return [...this.#turns.values()].sort((a, b) => a.id - b.id);
  }

  /** @param {number} id */
  turn(id) {
    return this.#turns.get(id);
  }

  /** @returns {Turn[]} without a terminal entry, oldest first; the first is the live one */
  get open() {
    return this.turns.filter((t) => t.begun && !t.terminal);
  }

  /** @param {string} key @returns {string} the newest value of a named piece of state */
  state(key) {
    return this.#state.get(key)?.value || '';
  }

  /** @returns {number} the lowest offset that a known turn has entries at; what is below belongs to others */
  get neededFrom() {
    let lowest = this.first;
    for (const t of this.#turns.values()) if (!t.begun && t.id < lowest) lowest = t.id;
    return lowest;
  }

  /** @param {Entry} e @returns {Turn|null} the turn that it changed */
  apply(e) {
    if (this.first === 0 || e.offset < this.first) this.first = e.offset;
    if (e.kind === 'state') {
      const known = this.#state.get(e.body.key);
      if (!known || known.offset < e.offset) this.#state.set(e.body.key, { offset: e.offset, value: decodeBytes(e.body.value) });
    }
    if (e.turn === 0) return null;
    const t = this.#turns.get(e.turn) || this.#begin(e.turn);
    if (e.offset === t.id) t.begun = true;
    switch (e.kind) {
      case 'userMessage':
        Object.assign(t, { messageId: e.body.messageId || '', text: e.body.text || '', time: e.time });
        break;
      case 'attempt':
        t.attempts = Math.max(t.attempts, e.body.number || 1);
        if (!t.attempt || t.attempt.offset < e.offset) t.attempt = { ...e.body, offset: e.offset };
        break;
      case 'chunk':
        addChunk(t, e.offset, e.body.text || '');
        break;
      case 'toolCall':
        t.tools.push({ offset: e.offset, body: e.body });
        break;
      case 'terminal':
        t.terminal = e.body;
        t.status = null;
        break;
      case 'erased':
        if (e.offset === t.id) t.erased = true;
        break;
      default:
    }
    return t;
  }

  /** @param {Status} s @returns {Turn|null} */
  applyStatus(s) {
    const t = this.#turns.get(s.turn);
    if (!t) this.#early = s;
    if (!t || t.terminal) return null;
    t.status = s;
    return t;
  }

  /** @param {number} id @returns {Turn} */
  #begin(id) {
    /** @type {Turn} */
    const t = {
      id, begun: false, messageId: '', text: '', time: 0, erased: false, answer: '', chunks: [], tools: [],
      attempt: null, attempts: 0, terminal: null, status: this.#early?.turn === id ? this.#early : null,
    };
    this.#turns.set(id, t);
    return t;
  }
}

/** @param {Turn} t @param {number} offset @param {string} text */
function addChunk(t, offset, text) {
  const last = t.chunks[t.chunks.length - 1];
  t.chunks.push({ offset, text });
  if (!last || last.offset < offset) {
    t.answer += text;
    return;
  }
  t.chunks.sort((a, b) => a.offset - b.offset); // from a range that was read later
  t.answer = t.chunks.map((c) => c.text).join('');
}

/** @param {string|undefined} base64 */
function decodeBytes(base64) {
  if (!base64) return '';
  return new TextDecoder().decode(Uint8Array.from(atob(base64), (c) => c.charCodeAt(0)));
}
