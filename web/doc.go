// Package web is the chat page: plain HTML, CSS and ES modules, embedded in the binary and served by Handler.
//
// Handler is the package's whole surface. It serves "/" and the page's files; everything else is 404. The caller
// mounts it behind its API routes, on the same origin as the WebSocket endpoint "v1/ws", which the page addresses
// relative to itself, so that it also works below a path of a reverse proxy:
//
//	mux.Handle("/v1/", api)
//	mux.Handle("/", web.Handler())
//
// The page asks nothing of any other origin and runs nothing that is not one of these files: the
// Content-Security-Policy of every response says so, and forbids the DOM's HTML parser (Trusted Types), so that
// text of a model or of another person cannot become markup.
//
// The files in static:
//
//	index.html       the document: landmarks, labels, the composer, the dialog of sessions
//	style.css        one narrow column of text, light and dark, down to 320 px
//	holdfast.js      the socket layer: holdfast.v1.json, resume by cursor, each entry exactly once
//	conversation.js  entries in, turns out; no DOM
//	markdown.js      the Markdown that models write, as DOM nodes
//	view.js          a turn on the page
//	memory.js        what this device remembers: recent sessions, drafts, messages not yet accepted
//	app.js           wires them
package web
