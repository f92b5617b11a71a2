// @ts-check
import { Session, Refusal, readEntries } from '../holdfast.js';
import { equal } from './check.js';

/** A clock and sockets that do what the test says. */
class World {
  now = 0;
  seq = 0;
  /** @type {{at: number, seq: number, f: () => void}[]} */ timers = [];
  /** @type {FakeSocket[]} */ sockets = [];
  jitter = 1;

  env() {
    const world = this;
    return {
      WebSocket: class extends FakeSocket {
        constructor(/** @type {string} */ url, /** @type {string[]} */ protocols) {
          super(url, protocols);
          world.sockets.push(this);
        }
      },
      setTimeout: (/** @type {() => void} */ f, /** @type {number} */ ms) => {
        const t = { at: this.now + ms, seq: this.seq++, f };
        this.timers.push(t);
        return t;
      },
      clearTimeout: (/** @type {any} */ t) => { this.timers = this.timers.filter((x) => x !== t); },
      random: () => this.jitter,
    };
  }

  /** @param {number} ms */
  advance(ms) {
    const end = this.now + ms;
    for (;;) {
      this.timers.sort((a, b) => a.at - b.at || a.seq - b.seq);
      const t = this.timers[0];
      if (!t || t.at > end) break;
      this.timers.shift();
      this.now = t.at;
      t.f();
    }
    this.now = end;
  }

  get socket() {
    return this.sockets[this.sockets.length - 1];
  }

  get openSockets() {
    return this.sockets.filter((s) => s.readyState < 2).length;
  }
}

class FakeSocket {
  readyState = 0;
  /** @type {any[]} */ sent = [];
  /** @type {any} */ onopen;
  /** @type {any} */ onmessage;
  /** @type {any} */ onclose;
  constructor(/** @type {string} */ url, /** @type {string[]} */ protocols) {
    this.url = url;
    this.protocols = protocols;
  }
  send(/** @type {string} */ data) { this.sent.push(JSON.parse(data)); }
  close() { this.readyState = 3; }

  // What the server does.
  open() { this.readyState = 1; this.onopen({}); }
  say(/** @type {any} */ frame) { this.onmessage?.({ data: JSON.stringify(frame) }); }
  end(code = 1006, reason = '') { this.readyState = 3; this.onclose?.({ code, reason }); }
  take() { return this.sent.splice(0); }
}

/** A session in a world, and all that it said. */
function begin(tail = 100) {
  const world = new World();
  /** @type {any[]} */ const said = [];
  const session = new Session({
    url: 'ws://x/v1/ws', kind: 'session', name: 's', tail, env: world.env(),
    onEntry: (e) => said.push(e.offset),
    onStatus: (s) => said.push(`${s.phase} ${s.position}`),
    onState: (s) => said.push(s.error ? `${s.phase}: ${s.error.code}` : s.phase),
    onReset: () => said.push('reset'),
    onDelayed: (id, r, ms) => said.push(`delayed ${id} ${r.code} ${ms}`),
  });
  session.start();
  return { world, session, said };
}

const welcome = { welcome: { version: 1, namespace: 'default', user: 'local', pingIntervalMs: 1000 } };

/** Opens the newest socket and answers up to the attachment. */
function attach(world, from = 0, { generation = '1', incarnation = 1, watermark = from } = {}) {
  const s = world.socket;
  s.open();
  s.say(welcome);
  const frames = s.take();
  const request = frames[frames.length - 1].request;
  s.say({ object: 'default/session/s', request, attached: { from: { generation, incarnation, offset: String(from) }, watermark: String(watermark) } });
  return frames;
}

const entry = (offset, body = { chunk: { text: 'x' } }, turn = 1) => ({ object: 'default/session/s', entry: { offset: String(offset), turn: String(turn), ...body } });

export const socketTests = {
  'speaks holdfast.v1.json and attaches to the newest entries'() {
    const { world, said } = begin(7);
    equal(world.socket.protocols, ['holdfast.v1.json'], 'subprotocol');
    const frames = attach(world);
    equal(frames[0].hello.version, 1, 'hello');
    equal(frames[1], { object: 'default/session/s', request: '1', attach: { tail: '7' } }, 'attach');
    equal(said, ['connecting', 'open'], 'states');
  },

  'gives each entry once over reconnects, in order'() {
    const { world, said } = begin();
    attach(world, 4);
    world.socket.say(entry(5));
    world.socket.say(entry(6));
    world.socket.say(entry(6));
    world.socket.end();
    world.advance(250);
    const frames = attach(world, 6);
    equal(frames[1].attach, { after: { generation: '1', incarnation: 1, offset: '6' } }, 'resumes');
    world.socket.say(entry(5));
    world.socket.say(entry(7));
    equal(said.filter((x) => typeof x === 'number'), [5, 6, 7], 'entries');
  },

  'never shows a gap: it goes back and reads'() {
    const { world, said } = begin();
    attach(world, 0);
    world.socket.say(entry(1));
    world.socket.say(entry(3));
    world.advance(250);
    equal(attach(world, 1)[1].attach.after.offset, '1', 'resumes before the gap');
    world.socket.say(entry(2));
    world.socket.say(entry(3));
    equal(said.filter((x) => typeof x === 'number'), [1, 2, 3], 'entries');
  },

  'frames of a replaced socket do nothing'() {
    const { world, said, session } = begin();
    attach(world, 0);
    const old = world.socket;
    const { onmessage, onclose } = old;
    old.end();
    world.advance(250);
    attach(world, 0);
    onmessage({ data: JSON.stringify(entry(1)) });
    onclose({ code: 1006 });
    equal(said.filter((x) => typeof x === 'number'), [], 'entries of the old socket');
    equal(session.cursor?.offset, 0, 'cursor');
    equal(world.sockets.length, 2, 'no third socket');
  },

  'an entry before the attachment is answered does nothing'() {
    const { world, said } = begin();
    world.socket.open();
    world.socket.say(welcome);
    world.socket.say(entry(1));
    equal(said, ['connecting'], 'said');
  },

  'waits longer each time, with full jitter and a cap'() {
    const { world } = begin();
    const waits = [];
    for (let i = 0; i < 8; i++) {
      world.socket.end();
      const at = world.now;
      while (world.openSockets === 0) world.advance(1);
      waits.push(world.now - at);
    }
    equal(waits, [250, 500, 1000, 2000, 4000, 8000, 8000, 8000], 'longest waits');
    world.jitter = 0.25;
    world.socket.end();
    const at = world.now;
    while (world.openSockets === 0) world.advance(1);
    equal(world.now - at, 2000, 'a quarter of it');
  },

  'begins with short waits again once a connection has held'() {
    const { world } = begin();
    for (let i = 0; i < 5; i++) {
      world.socket.end();
      world.advance(8000);
    }
    attach(world);
    for (let i = 0; i < 5; i++) {
      world.advance(999);
      world.socket.say({ pong: {} });
    }
    world.advance(5);
    world.socket.say({ pong: {} });
    world.socket.end();
    world.advance(249);
    equal(world.openSockets, 0, 'not yet');
    world.advance(1);
    equal(world.openSockets, 1, 'at once');
  },

  'waits for as long as the server asks'() {
    const { world } = begin();
    attach(world);
    world.socket.say({ closing: { code: 'draining', reconnectAfterMs: 3000 } });
    world.socket.end(1012);
    world.advance(2999);
    equal(world.openSockets, 0, 'not yet');
    world.advance(251);
    equal(world.openSockets, 1, 'then');
  },

  'one socket at a time, however often it is woken'() {
    const { world, session } = begin();
    world.socket.end();
    session.wake();
    session.wake();
    session.wake();
    equal(world.sockets.length, 2, 'sockets');
    world.advance(20000);
    equal(world.openSockets, 1, 'open sockets');
  },

  'a fatal close code ends the retries and says why'() {
    const { world, said, session } = begin();
    world.socket.open();
    world.socket.say({ error: { code: 'unauthenticated', message: 'who are you' } });
    world.socket.end(4401, 'unauthenticated');
    world.advance(60000);
    equal(said, ['connecting', 'failed: unauthenticated'], 'states');
    equal(world.sockets.length, 1, 'no more tries');
    session.start();
    attach(world);
    equal(said.slice(2), ['connecting', 'open'], 'starts again when told');
  },

  'a fatal close of an attached connection says why'() {
    const { world, said } = begin();
    attach(world);
    world.socket.say({ error: { code: 'invalid_frame', message: 'nonsense' } });
    world.socket.end(4400, 'invalid_frame');
    equal(said, ['connecting', 'open', 'failed: invalid_frame'], 'states');
  },

  'an error of the attached object is an error of the attachment'() {
    const { world, said } = begin();
    attach(world);
    world.socket.say({ object: 'default/session/s', error: { code: 'quarantined', message: 'damaged' } });
    equal(said, ['connecting', 'open', 'failed: quarantined'], 'states');
  },

  'a broken rule of the protocol is not repeated'() {
    for (const code of [1002, 1003, 1007, 1008, 1009, 1010]) {
      const { world, said } = begin();
      world.socket.end(code, 'no');
      world.advance(60000);
      equal([world.sockets.length, said[said.length - 1]], [1, `failed: close_${code}`], `after ${code}`);
    }
  },

  'a refused handshake and a going server are retried'() {
    for (const code of [1001, 1006, 1011, 1012, 1013, 3008]) {
      const { world } = begin();
      world.socket.end(code);
      world.advance(250);
      equal(world.sockets.length, 2, `after ${code}`);
    }
  },

  'another history resets'() {
    const { world, said } = begin();
    attach(world, 0);
    world.socket.say(entry(1));
    world.socket.end();
    world.advance(250);
    world.socket.open();
    world.socket.say(welcome);
    const request = world.socket.take()[1].request;
    world.socket.say({ object: 'default/session/s', request, error: { code: 'gone', message: 'erased', firstHeld: '1', present: { generation: '1', incarnation: 2, offset: '0' } } });
    const again = world.socket.take()[0];
    equal(again.attach, { tail: '100' }, 'attaches afresh');
    world.socket.say({ request: again.request, attached: { from: { generation: '1', incarnation: 2 } } });
    world.socket.say(entry(1));
    equal(said.filter((x) => x === 'reset' || typeof x === 'number'), [1, 'reset', 1], 'said');
  },

  'an attachment that starts elsewhere resets'() {
    const { world, said } = begin();
    attach(world, 3);
    world.socket.end();
    world.advance(250);
    attach(world, 3, { incarnation: 2 });
    equal(said.includes('reset'), true, 'reset');
  },

  'a retryable refusal of the attachment waits, another fails'() {
    const a = begin();
    a.world.socket.open();
    a.world.socket.say(welcome);
    a.world.socket.say({ request: '1', error: { code: 'unavailable', message: 'moving', retryable: true, retryAfterMs: 2000 } });
    a.world.advance(2250);
    equal(a.world.sockets.length, 2, 'tries again');
    const b = begin();
    b.world.socket.open();
    b.world.socket.say(welcome);
    b.world.socket.say({ request: '1', error: { code: 'invalid_name', message: 'no' } });
    equal(b.said, ['connecting', 'failed: invalid_name'], 'states');
  },

  async 'submit is sent again with the same id until accepted, and settles once'() {
    const { world, session } = begin();
    const accepted = session.submit('m1', 'hello'); // before there is a connection
    attach(world);
    const [first] = world.socket.take();
    equal(first.submit, { messageId: 'm1', text: 'hello' }, 'sent once attached');
    world.socket.end();
    world.advance(250);
    attach(world);
    const [second] = world.socket.take();
    equal(second.submit, first.submit, 'sent again');
    world.socket.say({ request: second.request, accepted: { messageId: 'm1', turn: '9', duplicate: true, outcome: 'OUTCOME_COMPLETED' } });
    equal(await accepted, { turn: 9, duplicate: true, outcome: 'OUTCOME_COMPLETED', position: 0 }, 'accepted');
    world.socket.end();
    world.advance(500);
    attach(world);
    equal(world.socket.take(), [], 'not sent a third time');
  },

  async 'a refused submit is retried or rejected'() {
    const { world, session, said } = begin();
    attach(world);
    const accepted = session.submit('m1', 'a');
    world.jitter = 0;
    let [frame] = world.socket.take();
    world.socket.say({ request: frame.request, error: { code: 'overloaded', message: 'full', retryable: true, retryAfterMs: 800, messageId: 'm1' } });
    equal(said.slice(2), ['delayed m1 overloaded 800'], 'told');
    world.advance(800);
    [frame] = world.socket.take();
    equal(frame.submit.messageId, 'm1', 'sent again');
    world.socket.say({ request: frame.request, error: { code: 'too_large', message: 'too long', hint: 'write less' } });
    const refusal = await accepted.catch((e) => e);
    equal([refusal instanceof Refusal, refusal.code, refusal.hint], [true, 'too_large', 'write less'], 'rejected');
  },

  async 'a message that the server would not read is refused here'() {
    const { world, session } = begin();
    world.socket.open();
    world.socket.say({ welcome: { ...welcome.welcome, maxFrameBytes: 120 } });
    const [, attachment] = world.socket.take();
    const long = session.submit('m1', 'é'.repeat(40)).catch((e) => e.code);
    world.socket.say({ request: attachment.request, attached: { from: { generation: '1', incarnation: 1 } } });
    equal(await long, 'too_large', 'refused');
    equal(world.socket.take(), [], 'nothing was sent');
    session.submit('m2', 'short');
    equal(world.socket.take().length, 1, 'a short one is sent');
  },

  'stop is sent again until answered'() {
    const { world, session } = begin();
    attach(world);
    session.stop(5);
    equal(world.socket.take()[0].stop, { turn: '5' }, 'stop');
    world.socket.end();
    world.advance(250);
    attach(world);
    const [again] = world.socket.take();
    equal(again.stop, { turn: '5' }, 'again');
    world.socket.say({ request: again.request, stopping: { turn: '5' } });
    world.socket.end();
    world.advance(500);
    attach(world);
    equal(world.socket.take(), [], 'answered');
  },

  'a turn that has ended needs no stop'() {
    const { world, session } = begin();
    session.stop(1);
    attach(world, 0);
    world.socket.take();
    world.socket.say(entry(1, { terminal: { outcome: 'OUTCOME_COMPLETED' } }));
    world.socket.end();
    world.advance(250);
    attach(world, 1);
    equal(world.socket.take(), [], 'nothing');
  },

  'a silent connection is pinged, then given up'() {
    const { world, said } = begin();
    attach(world);
    world.advance(1000);
    equal(world.socket.take(), [{ ping: {} }], 'ping');
    world.socket.say({ pong: {} });
    world.advance(1000);
    equal(world.socket.take(), [{ ping: {} }], 'ping again');
    world.advance(3999);
    equal(said[said.length - 1], 'open', 'still open');
    world.advance(1);
    equal(said[said.length - 1], 'waiting', 'given up');
    equal(world.openSockets, 0, 'closed');
  },

  'a handshake that hangs is given up'() {
    const { world, said } = begin();
    world.advance(10000);
    equal(said, ['connecting', 'waiting'], 'states');
  },

  'closing leaves nothing behind'() {
    const { world, session, said } = begin();
    attach(world);
    session.submit('m1', 'a');
    session.stop(1);
    session.close();
    equal(world.timers.length, 0, 'timers');
    equal(world.openSockets, 0, 'sockets');
    equal(said[said.length - 1], 'closed', 'state');
  },

  async 'statuses pass, unknown frames do not matter'() {
    const { world, said } = begin();
    attach(world);
    world.socket.say({ somethingNew: { a: 1 } });
    world.socket.say({ object: 'default/session/s', status: { turn: '1', phase: 'PHASE_QUEUED', position: 2 } });
    equal(said.slice(2), ['queued 2'], 'said');
  },

  async 'readEntries reads a range and leaves'() {
    const world = new World();
    const range = readEntries({ url: 'ws://x', address: 'default/session/s', cursor: { generation: '4', incarnation: 2, offset: 90 }, first: 3, last: 4, env: world.env() });
    world.socket.open();
    equal(world.socket.take()[1].attach, { after: { generation: '4', incarnation: 2, offset: '2' } }, 'attach');
    world.socket.say(welcome);
    world.socket.say({ attached: { from: { offset: '2' } } });
    world.socket.say(entry(3));
    world.socket.say(entry(4));
    equal((await range).map((e) => e.offset), [3, 4], 'entries');
    equal([world.openSockets, world.timers.length], [0, 0], 'nothing left');
  },

  async 'readEntries fails when the range has a gap'() {
    const world = new World();
    const range = readEntries({ url: 'ws://x', address: 'default/session/s', cursor: { generation: '4', incarnation: 2, offset: 90 }, first: 3, last: 5, env: world.env() });
    world.socket.open();
    world.socket.say(entry(3));
    world.socket.say(entry(5));
    equal(await range.then(() => 'read', () => 'refused'), 'refused', 'outcome');
  },
};
