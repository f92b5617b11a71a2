// @ts-check
/**
 * The socket layer of the page: one object over one WebSocket, spoken as holdfast.v1.json.
 *
 * What a caller of Session may rely on:
 *
 *  1. onEntry is called for every durable entry exactly once, in offset order, however often the connection breaks.
 *     When the server's history was replaced (erased, or restored from a backup), onReset is called first and
 *     entries begin anew.
 *  2. submit settles exactly once, and the server starts at most one turn for it: it is sent again, with the same
 *     message id, until it is accepted or refused for good.
 *  3. stop is sent again until the server has answered or the turn has ended.
 *  4. At most one socket exists at a time. Retries wait with full jitter, or for as long as the server has asked;
 *     a close code that says that it would be no use ends them.
 */

const PROTOCOL = 'holdfast.v1.json';
const CLIENT = 'holdfast-page/1';
const RETRY_BASE_MS = 250;
const RETRY_CAP_MS = 8000;
const STABLE_MS = 5000;
const CONNECT_MS = 10000;
const PING_MS = 25000;
const PROBE_MS = 4000;
// Close codes that speak against trying again, besides 4000 to 4999: the client broke a rule.
const TERMINAL = new Set([1002, 1003, 1007, 1008, 1009, 1010]);

/**
 * Where a reader stands: after `offset` in one incarnation of one store generation.
 * @typedef {{generation: string, incarnation: number, offset: number}} Cursor
 *
 * A durable entry. `kind` names the one body that it has, as the protocol's JSON does: userMessage, attempt, chunk,
 * toolCall, terminal, state, erased; of a newer server maybe another.
 * @typedef {{offset: number, time: number, turn: number, kind: string, body: any}} Entry
 *
 * What is true of a turn right now. `phase` is waiting, queued, loading, prefill, running or idle.
 * @typedef {{turn: number, phase: string, position: number, waiting: number, done: number, total: number}} Status
 *
 * @typedef {{turn: number, duplicate: boolean, outcome: string, position: number}} Accepted
 *
 * The connection. connecting: the first try, or one after waiting. open: attached. waiting: until the next try.
 * failed: given up, see error. closed: by close().
 * @typedef {{phase: 'connecting'|'open'|'waiting'|'failed'|'closed', retryMs: number, error: Refusal|null}} State
 *
 * What the layer needs of its surroundings; tests bring their own.
 * @typedef {{WebSocket: any, setTimeout: (f: () => void, ms: number) => any, clearTimeout: (t: any) => void,
 *   random: () => number}} Env
 *
 * @typedef {object} Handlers
 * @property {(entry: Entry) => void} [onEntry]
 * @property {(status: Status) => void} [onStatus]
 * @property {(state: State) => void} [onState]
 * @property {(attached: {from: Cursor, watermark: number, firstHeld: number, liveTurn: number}) => void} [onAttached]
 * @property {(offset: number) => void} [onCaughtUp]
 * @property {() => void} [onReset] forget what was shown: another history follows
 * @property {(messageId: string, refusal: Refusal, retryMs: number) => void} [onDelayed] a submit waits to be retried
 */

/** A coded refusal of the server. */
export class Refusal extends Error {
  /** @param {any} e the protocol's Error message */
  constructor(e) {
    super(e.message || e.code || 'refused');
    this.name = 'Refusal';
    /** @type {string} */ this.code = e.code || 'internal';
    /** @type {string} */ this.hint = e.hint || '';
    /** @type {boolean} */ this.retryable = Boolean(e.retryable);
    /** @type {number} */ this.retryAfterMs = Number(e.retryAfterMs || 0);
    /** @type {string} */ this.messageId = e.messageId || '';
  }
}

/** @returns {string} a message id: 128 random bits. Not randomUUID: that needs a secure context. */
export function newMessageId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (b) => b.toString(16).padStart(2, '0')).join('');
}

/** @returns {Env} */
function browserEnv() {
  return {
    WebSocket: globalThis.WebSocket,
    setTimeout: (f, ms) => globalThis.setTimeout(f, ms),
    clearTimeout: (t) => globalThis.clearTimeout(t),
    random: Math.random,
  };
}

/** One object, followed and spoken to. */
export class Session {
  /**
   * @param {{url: string, kind: string, name: string, tail: number, env?: Env} & Handlers} options
   *   tail: how many of the newest entries to begin with
   */
  constructor(options) {
    this.#o = options;
    this.#env = options.env || browserEnv();
  }

  /** @type {{url: string, kind: string, name: string, tail: number} & Handlers} */ #o;
  /** @type {Env} */ #env;

  /** Address of the object, once the server has said whose namespace it is in. */
  address = '';

  /** @type {Cursor|null} */ #cursor = null;
  /** @type {any} */ #ws = null;
  /** @type {State['phase']} */ #phase = 'closed';
  #attempt = 0;
  #request = 0;
  #attachRequest = 0;
  #attached = false;
  #pingMs = PING_MS;
  #maxFrameBytes = Infinity;
  #reconnectAfterMs = -1; // of a Closing frame
  /** @type {Refusal|null} */ #lastError = null;
  /** @type {Map<string, any>} */ #timers = new Map();
  /** @type {Map<string, {text: string, options: any, request: number, resolve: Function, reject: Function}>} */
  #submits = new Map();
  /** @type {Map<number, number>} turn to the request that carries its Stop */ #stops = new Map();

  /** The cursor after the last entry given to onEntry; null before the first attachment. */
  get cursor() {
    return this.#cursor && { ...this.#cursor };
  }

  /** Connects. Call it once; again after a failure, to try once more. */
  start() {
    this.#attempt = 0;
    this.#connect();
  }

  /** Ends the session here; turns go on at the server. Unsettled submits stay unsettled. */
  close() {
    this.#dropSocket();
    for (const name of [...this.#timers.keys()]) this.#cancel(name);
    this.#setPhase('closed');
  }

  /** The surroundings changed (network back, page visible): try or probe now instead of at the next timer. */
  wake() {
    if (this.#phase === 'waiting') this.#connect();
    else if (this.#phase === 'open') this.#probe();
  }

  /**
   * Starts a turn. The promise settles when the server has accepted the message or refused it for good
   * (with a Refusal).
   * @param {string} messageId @param {string} text @param {any} [options]
   * @returns {Promise<Accepted>}
   */
  submit(messageId, text, options) {
    return new Promise((resolve, reject) => {
      this.#submits.set(messageId, { text, options, request: 0, resolve, reject });
      this.#sendSubmit(messageId);
    });
  }

  /** Ends a turn; what it produced is kept. @param {number} turn */
  stop(turn) {
    this.#stops.set(turn, 0);
    this.#sendStop(turn);
  }

  // --- connection

  #connect() {
    this.#dropSocket();
    this.#cancel('retry');
    this.#cancel('stable');
    this.#lastError = null;
    this.#reconnectAfterMs = -1;
    this.#setPhase('connecting');
    let ws;
    try {
      ws = new this.#env.WebSocket(this.#o.url, [PROTOCOL]);
    } catch (e) {
      this.#fail(new Refusal({ code: 'invalid_argument', message: `cannot connect to ${this.#o.url}: ${e}` }));
      return;
    }
    this.#ws = ws;
    // Handlers of a socket that was replaced do nothing: there is one resume in flight.
    const mine = (/** @type {(e: any) => void} */ f) => (/** @type {any} */ e) => this.#ws === ws && f(e);
    ws.onopen = mine(() => this.#opened());
    ws.onmessage = mine((e) => this.#received(e.data));
    ws.onclose = mine((e) => this.#closed(e.code, e.reason));
    this.#after('connect', CONNECT_MS, () => this.#lost());
  }

  #dropSocket() {
    const ws = this.#ws;
    this.#ws = null;
    this.#attached = false;
    for (const name of ['connect', 'ping', 'pong']) this.#cancel(name);
    if (ws) ws.close();
  }

  #opened() {
    this.#send({ hello: { version: 1, client: CLIENT } });
  }

  /** @param {any} w */
  #welcomed(w) {
    this.#pingMs = w.pingIntervalMs || PING_MS;
    this.#maxFrameBytes = w.maxFrameBytes || Infinity;
    this.address = `${w.namespace}/${this.#o.kind}/${this.#o.name}`;
    this.#attach();
  }

  #attach() {
    this.#attached = false;
    this.#attachRequest = ++this.#request;
    const attach = this.#cursor
      ? { after: { ...this.#cursor, offset: String(this.#cursor.offset) } }
      : { tail: String(this.#o.tail) };
    this.#send({ object: this.address, request: String(this.#attachRequest), attach });
  }

  /** @param {number} code @param {string} reason */
  #closed(code, reason) {
    if (TERMINAL.has(code) || (code >= 4000 && code <= 4999)) {
      this.#fail(this.#lastError || new Refusal({ code: `close_${code}`, message: reason || 'the server ended the connection' }));
      return;
    }
    this.#lost();
  }

  /** The connection is gone, or as good as: try again later. */
  #lost() {
    this.#dropSocket();
    this.#cancel('stable');
    let ms = this.#env.random() * Math.min(RETRY_CAP_MS, RETRY_BASE_MS * 2 ** this.#attempt);
    if (this.#reconnectAfterMs >= 0) ms = this.#reconnectAfterMs + this.#env.random() * RETRY_BASE_MS;
    this.#attempt++;
    this.#after('retry', ms, () => this.#connect());
    this.#setPhase('waiting', ms);
  }

  /** @param {Refusal} refusal */
  #fail(refusal) {
    this.#dropSocket();
    this.#cancel('retry');
    this.#cancel('stable');
    this.#setPhase('failed', 0, refusal);
  }

  // --- what arrives

  /** @param {any} data */
  #received(data) {
    let frame;
    try {
      frame = JSON.parse(data);
    } catch {
      this.#lost();
      return;
    }
    this.#heard();
    const request = Number(frame.request || 0);
    if (frame.entry) this.#entry(decodeEntry(frame.entry));
    else if (frame.status) this.#attached && this.#o.onStatus?.(decodeStatus(frame.status));
    else if (frame.welcome) this.#welcomed(frame.welcome);
    else if (frame.attached) request === this.#attachRequest && this.#onAttached(frame.attached);
    else if (frame.caughtUp) this.#o.onCaughtUp?.(Number(frame.caughtUp.offset || 0));
    else if (frame.accepted) this.#accepted(frame.accepted);
    else if (frame.stopping) this.#stopAnswered(request);
    else if (frame.closing) this.#reconnectAfterMs = Number(frame.closing.reconnectAfterMs || 0);
    else if (frame.error) this.#refused(frame.object || '', request, new Refusal(frame.error));
    // Anything else is of a newer protocol, or a reply that nobody waits for.
  }

  /** @param {any} a */
  #onAttached(a) {
    const from = decodeCursor(a.from);
    const known = this.#cursor;
    if (known && (known.generation !== from.generation || known.incarnation !== from.incarnation || known.offset !== from.offset)) {
      this.#o.onReset?.(); // not where we asked to go on: what is shown belongs to another history
    }
    this.#cursor = from;
    this.#attached = true;
    this.#cancel('connect');
    this.#after('stable', STABLE_MS, () => { this.#attempt = 0; });
    this.#setPhase('open');
    this.#o.onAttached?.({
      from: { ...from }, watermark: Number(a.watermark || 0), firstHeld: Number(a.firstHeld || 0), liveTurn: Number(a.liveTurn || 0),
    });
    for (const id of [...this.#submits.keys()]) this.#sendSubmit(id);
    for (const turn of this.#stops.keys()) this.#sendStop(turn);
  }

  /** @param {Entry} entry */
  #entry(entry) {
    const cursor = this.#cursor;
    if (!this.#attached || !cursor || entry.offset <= cursor.offset) return; // seen before
    if (entry.offset !== cursor.offset + 1) {
      this.#lost(); // a gap is never shown: go back and read it
      return;
    }
    cursor.offset = entry.offset;
    if (entry.kind === 'terminal') this.#stops.delete(entry.turn);
    this.#o.onEntry?.(entry);
  }

  /** @param {any} a */
  #accepted(a) {
    const pending = this.#submits.get(a.messageId);
    if (!pending) return;
    this.#submits.delete(a.messageId);
    this.#cancel(`submit ${a.messageId}`);
    pending.resolve({
      turn: Number(a.turn || 0), duplicate: Boolean(a.duplicate), outcome: a.outcome || '', position: Number(a.position || 0),
    });
  }

  /** @param {number} request */
  #stopAnswered(request) {
    for (const [turn, r] of this.#stops) if (r === request) this.#stops.delete(turn);
  }

  /** @param {string} object @param {number} request @param {Refusal} refusal */
  #refused(object, request, refusal) {
    for (const [id, s] of this.#submits) {
      if (refusal.messageId === id || (request !== 0 && s.request === request)) return this.#submitRefused(id, refusal);
    }
    for (const [turn, r] of this.#stops) {
      if (request === 0 || r !== request) continue;
      if (refusal.retryable) this.#after(`stop ${turn}`, refusal.retryAfterMs || 1000, () => this.#sendStop(turn));
      else this.#stops.delete(turn);
      return;
    }
    if (object === '' && request === 0) this.#lastError = refusal; // about the connection; a close follows
    else if (request === 0 || request === this.#attachRequest) this.#attachRefused(refusal);
    // Else of a request that is settled.
  }

  /** @param {Refusal} refusal */
  #attachRefused(refusal) {
    if (refusal.code === 'gone') {
      this.#cursor = null;
      this.#o.onReset?.();
      this.#attach();
    } else if (refusal.retryable) {
      this.#reconnectAfterMs = refusal.retryAfterMs || -1;
      this.#lost();
    } else {
      this.#fail(refusal);
    }
  }

  /** @param {string} id @param {Refusal} refusal */
  #submitRefused(id, refusal) {
    const pending = this.#submits.get(id);
    if (!pending) return;
    if (refusal.retryable) {
      const ms = (refusal.retryAfterMs || 1000) * (1 + this.#env.random() / 2);
      this.#o.onDelayed?.(id, refusal, ms);
      this.#after(`submit ${id}`, ms, () => this.#sendSubmit(id));
      return;
    }
    this.#submits.delete(id);
    pending.reject(refusal);
  }

  // --- what is sent

  /** @param {string} id */
  #sendSubmit(id) {
    const s = this.#submits.get(id);
    if (!s || !this.#attached) return; // sent once attached
    s.request = ++this.#request;
    const frame = {
      object: this.address, request: String(s.request),
      submit: { messageId: id, text: s.text, ...(s.options ? { options: s.options } : {}) },
    };
    const bytes = new TextEncoder().encode(JSON.stringify(frame)).length;
    if (bytes > this.#maxFrameBytes) {
      // Sent, it would end the connection, and again after every reconnection.
      this.#submitRefused(id, new Refusal({
        code: 'too_large', message: `the message takes ${bytes} bytes, the server reads ${this.#maxFrameBytes}`, hint: 'send it in parts',
      }));
      return;
    }
    this.#send(frame);
  }

  /** @param {number} turn */
  #sendStop(turn) {
    if (!this.#stops.has(turn) || !this.#attached) return;
    const request = ++this.#request;
    this.#stops.set(turn, request);
    this.#send({ object: this.address, request: String(request), stop: { turn: String(turn) } });
  }

  /** @param {any} frame */
  #send(frame) {
    if (this.#ws?.readyState === 1) this.#ws.send(JSON.stringify(frame));
  }

  // --- liveness: a browser does not show the server's WebSocket pings to a page

  #heard() {
    this.#cancel('pong');
    this.#after('ping', this.#pingMs, () => this.#probe());
  }

  #probe() {
    this.#send({ ping: {} });
    this.#after('pong', PROBE_MS, () => this.#lost());
  }

  // --- timers and state

  /** @param {string} name @param {number} ms @param {() => void} f */
  #after(name, ms, f) {
    this.#cancel(name);
    this.#timers.set(name, this.#env.setTimeout(() => {
      this.#timers.delete(name);
      f();
    }, ms));
  }

  /** @param {string} name */
  #cancel(name) {
    if (!this.#timers.has(name)) return;
    this.#env.clearTimeout(this.#timers.get(name));
    this.#timers.delete(name);
  }

  /** @param {State['phase']} phase @param {number} [retryMs] @param {Refusal|null} [error] */
  #setPhase(phase, retryMs = 0, error = null) {
    this.#phase = phase;
    this.#o.onState?.({ phase, retryMs, error });
  }
}

/**
 * Reads the entries [first, last] once, over a socket of its own, for history that was not attached to.
 * Rejects with a Refusal, or an Error when the connection breaks.
 * @param {{url: string, address: string, cursor: Cursor, first: number, last: number, env?: Env}} o
 *   cursor: of the history that the range belongs to
 * @returns {Promise<Entry[]>}
 */
export function readEntries(o) {
  const env = o.env || browserEnv();
  return new Promise((resolve, reject) => {
    /** @type {Entry[]} */ const entries = [];
    const ws = new env.WebSocket(o.url, [PROTOCOL]);
    const finish = (/** @type {() => void} */ f) => {
      env.clearTimeout(timer);
      ws.onclose = ws.onmessage = null;
      ws.close();
      f();
    };
    const broken = () => finish(() => reject(new Error('the connection broke while earlier messages were read')));
    let timer = env.setTimeout(broken, CONNECT_MS);
    ws.onopen = () => {
      ws.send(JSON.stringify({ hello: { version: 1, client: CLIENT } }));
      const after = { generation: o.cursor.generation, incarnation: o.cursor.incarnation, offset: String(o.first - 1) };
      ws.send(JSON.stringify({ object: o.address, request: '1', attach: { after } }));
    };
    ws.onclose = broken;
    ws.onmessage = (/** @type {any} */ e) => {
      env.clearTimeout(timer);
      timer = env.setTimeout(broken, CONNECT_MS);
      const frame = JSON.parse(e.data);
      if (frame.error) return finish(() => reject(new Refusal(frame.error)));
      if (!frame.entry) return undefined;
      entries.push(decodeEntry(frame.entry));
      const offset = entries[entries.length - 1].offset;
      if (offset !== o.first + entries.length - 1) return broken();
      return offset === o.last ? finish(() => resolve(entries)) : undefined;
    };
  });
}

/** @param {any} c @returns {Cursor} */
function decodeCursor(c) {
  return { generation: String(c?.generation || 0), incarnation: Number(c?.incarnation || 0), offset: Number(c?.offset || 0) };
}

const ENVELOPE = new Set(['offset', 'timeUnixMs', 'turn']);

/** @param {any} e @returns {Entry} */
function decodeEntry(e) {
  const kind = Object.keys(e).find((key) => !ENVELOPE.has(key)) || '';
  return { offset: Number(e.offset || 0), time: Number(e.timeUnixMs || 0), turn: Number(e.turn || 0), kind, body: e[kind] || {} };
}

/** @param {any} s @returns {Status} */
function decodeStatus(s) {
  return {
    turn: Number(s.turn || 0), phase: String(s.phase || '').replace('PHASE_', '').toLowerCase(),
    position: s.position || 0, waiting: s.waiting || 0, done: s.done || 0, total: s.total || 0,
  };
}
