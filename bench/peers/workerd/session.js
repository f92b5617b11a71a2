// A durable session object on workerd with the wire of bench/loadgen's "plain" adapter, as a peer to measure beside.
//   client: {"t":"say","id":S,"text":S,"n":N,"gap":MS,"durable":B}
//   server: {"t":"ack","id":S} once the message is durable (output gate), N times {"t":"tok","id":S,"d":S}, {"t":"end","id":S}
// With durable, every token is stored before it is sent: the output gate then holds it until it is on disk.
import { DurableObject } from "cloudflare:workers";

const WORDS = "the quick brown fox jumps over the lazy dog and streams a token".split(" ");

export class Session extends DurableObject {
  constructor(ctx, env) {
    super(ctx, env);
    this.sql = ctx.storage.sql;
    this.sql.exec("CREATE TABLE IF NOT EXISTS log(seq INTEGER PRIMARY KEY, role TEXT, id TEXT, body TEXT, at INTEGER)");
  }

  append(role, id, body) {
    this.sql.exec("INSERT INTO log(role, id, body, at) VALUES(?, ?, ?, ?)", role, id, body, Date.now());
  }

  async fetch() {
    const [client, server] = Object.values(new WebSocketPair());
    this.ctx.acceptWebSocket(server); // hibernation
    return new Response(null, { status: 101, webSocket: client });
  }

  async webSocketMessage(ws, raw) {
    const m = JSON.parse(raw);
    if (m.t !== "say") return;
    this.append("user", m.id, m.text);
    ws.send(JSON.stringify({ t: "ack", id: m.id }));
    if (!m.n) return;
    let body = "";
    for (let i = 0; i < m.n; i++) {
      const d = WORDS[i % WORDS.length] + " ";
      body += d;
      if (m.durable) this.append("token", m.id, d);
      ws.send(JSON.stringify({ t: "tok", id: m.id, d }));
      if (m.gap > 0) await scheduler.wait(m.gap);
    }
    this.append("assistant", m.id, body);
    ws.send(JSON.stringify({ t: "end", id: m.id }));
  }

  webSocketClose(ws, code) {
    try { ws.close(code, "bye"); } catch { /* it is closed already */ }
  }
}

export default {
  async fetch(request, env) {
    const match = new URL(request.url).pathname.match(/^\/h\/([\w.-]+)$/);
    if (!match) return new Response("not found", { status: 404 });
    return env.SESSION.get(env.SESSION.idFromName(match[1])).fetch(request);
  },
};
