// Teacher-forced logits of llama.cpp, for record.py.
//
//   reference BACKEND.so MODEL.gguf TEXT TOKENS_OUT LOGITS_OUT
//
// Tokenises TEXT, writes the token ids (uint32), evaluates them on one thread with the given CPU backend and writes the
// logits after every token (float32).
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "llama.h"

static void die(const char *what) {
  fprintf(stderr, "reference: %s\n", what);
  exit(1);
}

template <class T> static void write_all(const char *path, const std::vector<T> &data) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char *>(data.data()), data.size() * sizeof(T));
  if (!out.flush()) die(path);
}

int main(int argc, char **argv) {
  if (argc != 6) die("usage: reference BACKEND.so MODEL.gguf TEXT TOKENS_OUT LOGITS_OUT");
  llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
  if (!ggml_backend_load(argv[1])) die("cannot load the backend");
  llama_model *model = llama_model_load_from_file(argv[2], llama_model_default_params());
  if (!model) die("cannot load the model");
  const llama_vocab *vocab = llama_model_get_vocab(model);
  std::ifstream in(argv[3], std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  std::vector<llama_token> tokens(text.size());
  int n = llama_tokenize(vocab, text.data(), text.size(), tokens.data(), tokens.size(), false, false);
  if (n <= 0) die("cannot tokenise the text");
  tokens.resize(n);

  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = 1024;
  params.n_threads = params.n_threads_batch = 1;
  if (n > 1024) die("the text has more than 1024 tokens");
  llama_context *context = llama_init_from_model(model, params);
  if (!context) die("cannot make a context");
  llama_batch batch = llama_batch_init(n, 0, 1);
  batch.n_tokens = n;
  for (int i = 0; i < n; i++) {
    batch.token[i] = tokens[i];
    batch.pos[i] = i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = true;
  }
  if (llama_decode(context, batch)) die("evaluation failed");
  size_t vocabulary = llama_vocab_n_tokens(vocab);
  std::vector<float> logits;
  for (int i = 0; i < n; i++) {
    const float *row = llama_get_logits_ith(context, i);
    logits.insert(logits.end(), row, row + vocabulary);
  }
  write_all(argv[4], tokens);
  write_all(argv[5], logits);
}
