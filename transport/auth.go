package transport

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/holdfast-ai/holdfast/proto"
)

// Authenticator says who sends a request. Its errors are *proto.Error of code unauthenticated or forbidden, or
// retryable ones. It is safe for concurrent use and must not keep the request.
type Authenticator interface {
	Authenticate(r *http.Request) (proto.Principal, error)
}

// Local takes everybody who connects from the machine itself for its one user, and refuses everybody else. A reverse
// proxy on the same machine makes the whole world local: give such a server another Authenticator.
type Local struct{}

// Authenticate implements Authenticator.
func (Local) Authenticate(r *http.Request) (proto.Principal, error) {
	if !isLoopback(r.RemoteAddr) {
		return proto.Principal{}, &proto.Error{
			Code:    proto.CodeUnauthenticated,
			Message: "this server takes connections from its own machine only",
			Hint:    "connect over loopback, for example through an ssh tunnel, or configure authentication",
		}
	}
	return proto.Principal{Namespace: "default", User: "local"}, nil
}

func isLoopback(hostport string) bool {
	a, err := netip.ParseAddrPort(hostport)
	return err == nil && a.Addr().Unmap().IsLoopback()
}

// checkHost refuses a request to a loopback listener under a foreign name. A page of another site can point its own
// name at 127.0.0.1 after it was loaded (DNS rebinding): its requests then have its own origin, and only the Host
// header tells.
func (s *Server) checkHost(r *http.Request) *proto.Error {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok || !isLoopback(local.String()) {
		return nil
	}
	name := hostname(r.Host)
	if a, err := netip.ParseAddr(name); err == nil && a.Unmap().IsLoopback() {
		return nil
	}
	if strings.EqualFold(name, "localhost") || hasSuffixFold(name, ".localhost") || listed(s.o.AllowedHosts, name) {
		return nil
	}
	return &proto.Error{
		Code:    proto.CodeForbidden,
		Message: "this listener is local and does not answer to the host name of this request",
		Hint:    "use localhost, or allow the name in the server's configuration",
	}
}

// checkOrigin refuses a page of another site: a browser would connect with the user's credentials (cross-site
// WebSocket hijacking). Programs send no Origin.
func (s *Server) checkOrigin(r *http.Request) *proto.Error {
	origins := r.Header.Values("Origin")
	if len(origins) == 0 {
		return nil
	}
	if len(origins) == 1 {
		u, err := url.Parse(origins[0])
		if err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https") && strings.EqualFold(u.Host, r.Host) {
			return nil
		}
		if listed(s.o.AllowedOrigins, origins[0]) {
			return nil
		}
	}
	return &proto.Error{
		Code:    proto.CodeForbidden,
		Message: "pages of this origin may not connect",
		Hint:    "allow the origin in the server's configuration",
	}
}

// hostname takes the port and the brackets from a Host header.
func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
}

func listed(list []string, s string) bool {
	for _, l := range list {
		if l == "*" || strings.EqualFold(l, s) {
			return true
		}
	}
	return false
}

func hasSuffixFold(s, suffix string) bool {
	return len(s) >= len(suffix) && strings.EqualFold(s[len(s)-len(suffix):], suffix)
}
