// Package echo is a runtime whose model follows a script instead of thinking. It is for tests of everything around
// a model: pace, resuming, errors, stalls, crashes and tool calls can be asked for, exactly. A server offers it in
// test configurations only.
//
// The central type is Model:
//
//	m := echo.New(echo.Options{Clock: clock})
//	usage, err := m.Run(ctx, &inference.Request{Messages: []inference.Message{
//		{Role: inference.User, Content: "/echo n=100 gap=20ms fail=20"},
//	}}, emit)
//
// # Scripts
//
// The last message of the user is the script. An ordinary message is answered with Options.Default, three tokens unless
// set; one that begins with "slow" with twelve tokens 100 ms apart:
//
//	hi        tok0 tok1 tok2
//	slow      tok0 tok1 … tok11
//
// A message "/echo" followed by words key=value says it in detail:
//
//	n=100         tokens; 3. Token i is "tok<i> ", or as the following keys say
//	bytes=1024    pads every token to this many bytes
//	seed=7        tokens are words of various length, chosen by the number
//	text=…        the answer is this text, the rest of the message, a token for each word; n is ignored
//	gap=20ms      time between tokens; 0
//	first=1s      time before the first token; 0
//	queue=5       first tells Progress of the positions 5 to 1, a gap apart
//	fail=20       fails instead of token 20 (counted from 0)
//	error=model   how: model, overloaded, unavailable, overflow
//	stall=5       hangs instead of token 5 until the context ends
//	crash=7       ends the process instead of token 7
//	tool=name     ends with a call of this tool
//	args={"a":1}  with these arguments, without spaces; {}
//
// A plan pins the script, so a resumed answer goes on exactly, and meets fail, stall and crash again if it comes by
// their token: a model that crashes crashes again after a restart. With Options.NoPlan the model is like
// a remote one: it cannot continue and its chunks carry no token ids. MaxTokens and Stop are honoured.
package echo
