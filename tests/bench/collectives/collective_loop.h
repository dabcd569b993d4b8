// SPDX-License-Identifier: Apache-2.0
// One loop for every library: the same sizes, buffers that change before every call, one processor
// for each rank, the library's own barrier before each call, and the slowest rank's time of each
// call. Prints a line of JSON per operation and size.
//
// Where every rank has a processor they begin each call at one moment, which they agree on in
// memory of the loop's own: a library whose barrier lets the root out first would have a head start
// otherwise. BENCH_START=barrier: when the barrier lets each of them go.
//
// A library is a class with: int rank(), int size(), void barrier(), and for each operation
// void name(const float* send, float* receive, size_t count), count being one rank's elements of
// the smaller side; bool has(operation); void maximum(double*, size_t); float* buffer(size_t).
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace bench {

using Clock = std::chrono::steady_clock;

// Every rank has a processor of its own where there are enough; have they?
inline bool pin(int rank, int size) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < size)
    return false;
  int seen = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || seen++ != rank) continue;
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(cpu, &own);
    return sched_setaffinity(0, sizeof own, &own) == 0;
  }
  return false;
}

// A moment that all ranks agree on, by the clock that the processes of a machine share.
class Start {
 public:
  template <class Library>
  void prepare(Library& library) {
    // Rank 0's descriptor, as all ranks can open it.
    double place[2] = {0, 0};
    if (library.rank() == 0) {
      const int descriptor = memfd_create("bench-start", 0);
      if (descriptor < 0 || ftruncate(descriptor, sizeof(Shared)) != 0) std::exit(1);
      place[0] = getpid();
      place[1] = descriptor;
    }
    library.maximum(place, 2);
    const std::string path = "/proc/" + std::to_string(static_cast<int>(place[0])) + "/fd/" +
                             std::to_string(static_cast<int>(place[1]));
    const int descriptor = open(path.c_str(), O_RDWR);
    void* const memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    // Where one rank cannot, on another machine or in another process namespace, none does.
    double has_failed = memory == MAP_FAILED ? 1 : 0;
    library.maximum(&has_failed, 1);
    if (has_failed != 0) return;
    shared_ = static_cast<Shared*>(memory);
    size_ = static_cast<unsigned>(library.size());
  }
  bool is_prepared() const { return shared_ != nullptr; }

  // Returns at that moment.
  Clock::time_point wait() {
    ++round_;
    if (shared_->arrived.fetch_add(1) + 1 == round_ * size_) {
      const auto soon = Clock::now() + std::chrono::microseconds(2);
      shared_->moment.store(soon.time_since_epoch().count());
    }
    // Another round's moment is over.
    std::int64_t moment = 0;
    while ((moment = shared_->moment.load(std::memory_order_relaxed)) <= last_) {
    }
    last_ = moment;
    const Clock::time_point start{Clock::duration(moment)};
    while (Clock::now() < start) {
    }
    return start;
  }

 private:
  struct Shared {
    alignas(128) std::atomic<unsigned> arrived;
    alignas(128) std::atomic<std::int64_t> moment;
  };
  Shared* shared_ = nullptr;  // Until the process ends.
  unsigned size_ = 0;
  unsigned round_ = 0;
  std::int64_t last_ = 0;
};

struct Options {
  std::size_t max_bytes = std::size_t{64} << 20;
  double seconds = 0.15;  // Of each cell, about.
  std::string operations = "all_reduce broadcast all_gather reduce_scatter all_to_all barrier";
};

inline Options options_of(int argc, char** argv) {
  Options options;
  if (argc > 1) options.max_bytes = std::strtoull(argv[1], nullptr, 0);
  if (argc > 2) options.seconds = std::strtod(argv[2], nullptr);
  if (argc > 3) options.operations = argv[3];
  return options;
}

template <class Library>
class Loop {
 public:
  // has_processor_each: of all ranks.
  Loop(Library& library, const char* name, const Options& options, bool has_processor_each)
      : library_(library), name_(name), options_(options) {
    const char* const wanted = std::getenv("BENCH_START");
    const bool by_barrier = wanted != nullptr && std::string(wanted) == "barrier";
    if (has_processor_each && !by_barrier) start_.prepare(library);
    const std::size_t ranks = static_cast<std::size_t>(library.size());
    // The larger side of an operation is as many bytes as the row says.
    const std::size_t floats = options.max_bytes / sizeof(float) + 16 * ranks;
    send_ = library.buffer(floats);
    receive_ = library.buffer(floats);
    std::fill(send_, send_ + floats, 1.0f);
    std::fill(receive_, receive_ + floats, 0.0f);
  }

  void run() {
    std::size_t begin = 0;
    const std::string& list = options_.operations;
    while (begin < list.size()) {
      const std::size_t end = std::min(list.find(' ', begin), list.size());
      run_operation(list.substr(begin, end - begin));
      begin = end + 1;
    }
  }

 private:
  void run_operation(const std::string& operation) {
    if (!library_.has(operation)) return;
    if (operation == "barrier") return run_cell(operation, 0);
    // Eightfold steps, and those sizes from 4 MiB on at which memory, not the caches, decides.
    for (std::size_t bytes = 8; bytes <= options_.max_bytes; bytes *= 2) {
      const int power = __builtin_ctzll(bytes);
      if (power % 3 == 0 || (power >= 22 && power % 2 == 0)) run_cell(operation, bytes);
    }
  }

  void call(const std::string& operation, std::size_t bytes) {
    const auto ranks = static_cast<std::size_t>(library_.size());
    const std::size_t whole = std::max<std::size_t>(1, bytes / sizeof(float));
    const std::size_t share = std::max<std::size_t>(1, whole / ranks);
    if (operation == "all_reduce") library_.all_reduce(send_, receive_, whole);
    if (operation == "broadcast") library_.broadcast(send_, whole);
    if (operation == "all_gather") library_.all_gather(send_, receive_, share);
    if (operation == "reduce_scatter") library_.reduce_scatter(send_, receive_, share);
    if (operation == "all_to_all") library_.all_to_all(send_, receive_, share);
    if (operation == "memcpy") std::memcpy(receive_, send_, bytes);
    if (operation == "stream") library_.stream(send_, receive_, bytes);
    if (operation == "barrier") library_.barrier();
  }

  void change(std::size_t bytes) {
    for (std::size_t i = 0; i < std::max<std::size_t>(1, bytes / sizeof(float)); i += 16) {
      send_[i] = send_[i] < 8 ? send_[i] + 1 : 0;
    }
  }

  double sample(const std::string& operation, std::size_t bytes) {
    change(bytes);
    library_.barrier();
    const auto start = start_.is_prepared() ? start_.wait() : Clock::now();
    call(operation, bytes);
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  void run_cell(const std::string& operation, std::size_t bytes) {
    double slowest = 0;
    for (int i = 0; i < 8; ++i)
      slowest = sample(operation, bytes);  // Warm, also where a library learns.
    // The same number on all ranks.
    library_.maximum(&slowest, 1);
    const double wanted = options_.seconds / std::max(slowest, 1e-7);
    const auto count = static_cast<std::size_t>(std::clamp(wanted, 7.0, 20000.0));
    std::vector<double> samples(count);
    for (double& one : samples) one = sample(operation, bytes);
    library_.maximum(samples.data(), samples.size());
    std::sort(samples.begin(), samples.end());
    if (library_.rank() != 0) return;
    std::printf(
        "{\"library\": \"%s\", \"operation\": \"%s\", \"bytes\": %zu, \"median_us\": %.3f, "
        "\"p99_us\": %.3f, \"calls\": %zu}\n",
        name_, operation.c_str(), bytes, samples[count / 2] * 1e6, samples[count * 99 / 100] * 1e6,
        count);
    std::fflush(stdout);
  }

  Library& library_;
  Start start_;
  const char* const name_;
  const Options options_;
  float* send_ = nullptr;  // Until the process ends.
  float* receive_ = nullptr;
};

}  // namespace bench
