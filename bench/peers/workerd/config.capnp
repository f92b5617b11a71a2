using Workerd = import "/workerd/workerd.capnp";

const config :Workerd.Config = (
  services = [
    (name = "main", worker = .main),
    (name = "disk", disk = (path = "data", writable = true)),
  ],
  sockets = [ (name = "http", address = "127.0.0.1:8787", http = (), service = "main") ],
);

const main :Workerd.Worker = (
  compatibilityDate = "2026-08-01",
  modules = [ (name = "session.js", esModule = embed "session.js") ],
  durableObjectNamespaces = [ (className = "Session", uniqueKey = "holdfast-bench-session", enableSql = true) ],
  durableObjectStorage = (localDisk = "disk"),
  bindings = [ (name = "SESSION", durableObjectNamespace = "Session") ],
);
