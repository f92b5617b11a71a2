// @ts-check
/**
 * What this device remembers, none of it needed: the names of recent sessions, a draft a session, and messages that
 * the server has not accepted yet, so that a reload while offline loses nothing. A browser that forbids storage
 * just forgets.
 */

const MAX_SESSIONS = 50;

/** @param {string} key @param {any} fallback */
function read(key, fallback) {
  try {
    return JSON.parse(localStorage.getItem(`holdfast.${key}`) || 'null') ?? fallback;
  } catch {
    return fallback;
  }
}

/** @param {string} key @param {any} value null forgets it */
function write(key, value) {
  try {
    if (value === null) localStorage.removeItem(`holdfast.${key}`);
    else localStorage.setItem(`holdfast.${key}`, JSON.stringify(value));
  } catch {
    // Full or forbidden.
  }
}

/** @typedef {{name: string, title: string, at: number}} Recent */

/** @returns {Recent[]} newest first */
export function recentSessions() {
  const list = read('sessions', []);
  return Array.isArray(list) ? list : [];
}

/** @param {string} name @param {string} [title] */
export function rememberSession(name, title) {
  const list = recentSessions();
  const known = list.find((s) => s.name === name);
  const entry = { name, title: title || known?.title || '', at: Date.now() };
  write('sessions', [entry, ...list.filter((s) => s.name !== name)].slice(0, MAX_SESSIONS));
}

/** @param {string} name */
export function forgetSession(name) {
  write('sessions', recentSessions().filter((s) => s.name !== name));
}

/** @typedef {{id: string, text: string}} Unsent */

/** @param {string} name @returns {Unsent[]} in the order in which they were written */
export function unsent(name) {
  const list = read(`unsent.${name}`, []);
  return Array.isArray(list) ? list : [];
}

/** @param {string} name @param {Unsent} message */
export function keepUnsent(name, message) {
  write(`unsent.${name}`, [...unsent(name).filter((m) => m.id !== message.id), message]);
}

/** @param {string} name @param {string} id */
export function dropUnsent(name, id) {
  const rest = unsent(name).filter((m) => m.id !== id);
  write(`unsent.${name}`, rest.length ? rest : null);
}

/** @param {string} name @returns {string} */
export function draft(name) {
  return String(read(`draft.${name}`, ''));
}

/** @param {string} name @param {string} text */
export function keepDraft(name, text) {
  write(`draft.${name}`, text || null);
}

const FIRST = ['amber', 'autumn', 'bright', 'calm', 'clear', 'copper', 'early', 'gentle', 'golden', 'green', 'hidden', 'ivory',
  'late', 'little', 'lunar', 'mellow', 'misty', 'northern', 'open', 'patient', 'quiet', 'silver', 'slow', 'southern', 'steady',
  'still', 'sunny', 'tidal', 'velvet', 'warm', 'western', 'winter'];
const SECOND = ['anchor', 'bay', 'birch', 'brook', 'cedar', 'cliff', 'cove', 'dune', 'fern', 'field', 'harbor', 'heron', 'island',
  'kelp', 'lagoon', 'lantern', 'larch', 'meadow', 'moss', 'otter', 'pebble', 'pine', 'plover', 'reef', 'river', 'sail', 'shell',
  'shore', 'stone', 'tern', 'wave', 'willow'];
const TAIL = '23456789abcdefghjkmnpqrstvwxyz';

/** @returns {string} a new name that is easy to say: quiet-heron-7kd2, one of 800 million */
export function newName() {
  const r = crypto.getRandomValues(new Uint32Array(6));
  const tail = [...r.subarray(2)].map((n) => TAIL[n % TAIL.length]).join('');
  return `${FIRST[r[0] % FIRST.length]}-${SECOND[r[1] % SECOND.length]}-${tail}`;
}
