// Package tokenizer turns text into token ids and back by byte-level BPE, as the models of the GPT-2, Llama 3, Qwen 2
// and SmolLM families were trained with.
//
// The central type is Tokenizer, which implements inference.Tokenizer. It is made from a model file's vocabulary:
//
//	f, err := gguf.Open("model.gguf")
//	…
//	t, err := tokenizer.FromGGUF(f)
//	if err != nil {
//		return err
//	}
//	prompt := t.Encode(nil, "Why is the sky blue?")
//
// and a Decoder makes text of tokens while they arrive, whole characters only:
//
//	d := t.NewDecoder()
//	for token := range answer {
//		io.WriteString(os.Stdout, d.Push(token))
//	}
//	io.WriteString(os.Stdout, d.Flush())
//
// Encode works in two steps. A pre-tokenizer cuts the text into pieces (a word with the space before it, a digit, a run
// of punctuation), and byte-pair merges turn the bytes of each piece into tokens. The cuts are regular expressions in
// the models' own files; here they are scanners written by hand, one a family, with the same cuts in linear time. Merges
// cost O(n log n) for a piece of n bytes, whatever the text. Letters, digits and spaces are what Go's Unicode tables
// call so; a generation that must be continued pins its token ids and not its text.
//
// Text is data. Encode never makes a control token, whatever the text says: only Control gives one, by name, to the
// template that frames the text. A text may hold any bytes; those which are not UTF-8 count as symbols and are kept
// byte by byte. The one loss: a vocabulary may have no token for a byte (SmolLM2 lacks six control characters and
// fifteen bytes that hardly occur in UTF-8). Such bytes are left out before merging, as
// the implementation does that the models were trained with; Encodable tells which.
package tokenizer
