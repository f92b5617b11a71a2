// Package gguf reads GGUF files, versions 2 and 3: metadata, and the tensors of a model in the quantised types of ggml.
//
// The central type is File. Opening one reads and checks everything in front of the weights; the weights stay on disk
// until asked for, row by row:
//
//	f, err := gguf.Open("model.gguf")
//	if err != nil {
//		return err
//	}
//	defer f.Close()
//	width, err := f.Uint("llama.embedding_length")
//	…
//	embedding, err := f.Tensor("token_embd.weight")
//	…
//	row := make([]float32, embedding.Columns())
//	for i := range embedding.Rows() {
//		if err := embedding.Row(i, row); err != nil {
//			return err
//		}
//	}
//
// Files are not trusted. Every length, count, dimension, offset and alignment is checked against the size of the file
// and against fixed limits before it is used, so that a hostile file costs an error, a bounded time and a few times the
// size of its own metadata. An error names the file, the offset and the reason and wraps a sentinel: ErrFormat if the
// file breaks the format, ErrUnsupported if it uses something that this package does not know, ErrNotFound and ErrType
// for a key or a tensor that is absent or of another type. Errors of the underlying reader are wrapped as they are.
//
// The caller's duties: the file does not change while it is open, and nothing is read from it after Close. Everything
// else may be called from many goroutines at once.
package gguf
