// llama.cpp as a process that computes on demand, for ../main.go.
//
//   peer BACKEND.so MODEL.gguf THREADS
//
// Reads commands from standard input and answers each with the seconds that it took, elapsed and of processor time:
//
//   prefill N        N tokens of one sequence from its beginning
//   decode B WARM N  B sequences, WARM steps that do not count, then N that do
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "ggml-backend.h"
#include "llama.h"

static void die(const char *what) {
  fprintf(stderr, "peer: %s\n", what);
  exit(1);
}

struct Stopwatch {
  double elapsed = read(CLOCK_MONOTONIC), processor = read(CLOCK_PROCESS_CPUTIME_ID);
  static double read(clockid_t clock) {
    timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
  }
  void report() const {
    Stopwatch end;
    printf("%.9f %.9f\n", end.elapsed - elapsed, end.processor - processor);
    fflush(stdout);
  }
};

// The same tokens as ../main.go's.
static llama_token token(int sequence, int position) { return 100 + (position * 37 + sequence * 11) % 40000; }

static llama_context *context;

static void decode(llama_batch &batch) {
  if (llama_decode(context, batch)) die("evaluation failed");
  llama_synchronize(context);
}

static void put(llama_batch &batch, int sequence, int position, bool logits) {
  int i = batch.n_tokens++;
  batch.token[i] = token(sequence, position);
  batch.pos[i] = position;
  batch.n_seq_id[i] = 1;
  batch.seq_id[i][0] = sequence;
  batch.logits[i] = logits;
}

int main(int argc, char **argv) {
  if (argc != 4) die("usage: peer BACKEND.so MODEL.gguf THREADS");
  llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
  if (!ggml_backend_load(argv[1])) die("cannot load the backend");
  llama_model *model = llama_model_load_from_file(argv[2], llama_model_default_params());
  if (!model) die("cannot load the model");
  llama_context_params params = llama_context_default_params();
  params.n_ctx = 8 * 1024;
  params.n_batch = params.n_ubatch = 512;
  params.n_seq_max = 8;
  params.n_threads = params.n_threads_batch = atoi(argv[3]);
  if (!(context = llama_init_from_model(model, params))) die("cannot make a context");
  llama_batch batch = llama_batch_init(512, 0, 1);

  char line[128];
  while (fgets(line, sizeof line, stdin)) {
    int sequences, warm, n;
    llama_memory_clear(llama_get_memory(context), true);
    if (sscanf(line, "prefill %d", &n) == 1) {
      batch.n_tokens = 0;
      for (int p = 0; p < n; p++) put(batch, 0, p, p == n - 1);
      Stopwatch watch;
      decode(batch);
      watch.report();
    } else if (sscanf(line, "decode %d %d %d", &sequences, &warm, &n) == 3) {
      Stopwatch watch;
      for (int p = 0; p < warm + n; p++) {
        if (p == warm) watch = Stopwatch();
        batch.n_tokens = 0;
        for (int s = 0; s < sequences; s++) put(batch, s, p, true);
        decode(batch);
      }
      watch.report();
    } else {
      die("unknown command");
    }
  }
}
