// SPDX-License-Identifier: Apache-2.0
// A test double of NCCL as the caller of a profiler plug-in: opens the library that
// NCCL_PROFILER_PLUGIN names and calls it like NCCL, without a GPU.
//
//   nccl_caller serve SOCKET        answers as a supervisor; prints all pages for each input line
//   nccl_caller calls COUNT         version 5: COUNT all-reduces; prints their cost in nanoseconds
//   nccl_caller steps COUNT         COUNT steps of a proxy; prints their cost in nanoseconds
//   nccl_caller rank COUNT ABSENT   a rank of a job: COUNT all-reduces, of which rank ABSENT omits
//                                   the last; prints "ready" and sleeps
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "comm/nccl_profiler/profiler_interface.h"
#include "proto/os/clock.h"
#include "tests/support/page_server.h"

namespace {

using namespace ivy::nccl_profiler;

int number_of(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? 0 : std::atoi(text);
}

// One communicator, as in version 5 of the plug-in interface.
class Caller {
 public:
  Caller() {
    const char* const path = std::getenv("NCCL_PROFILER_PLUGIN");
    void* const library = path == nullptr ? nullptr : dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      std::fprintf(stderr, "NCCL_PROFILER_PLUGIN: %s\n", path == nullptr ? "not set" : dlerror());
      std::exit(3);
    }
    plugin_ = static_cast<const PluginV5*>(dlsym(library, "ncclProfiler_v5"));
    const int ranks = number_of("IVY_WORLD_SIZE");
    plugin_->open(&context_, 0x1a2b, &mask_, "tp", 1, ranks == 0 ? 1 : ranks, number_of("IVY_RANK"),
                  nullptr);
  }
  ~Caller() { plugin_->close(context_); }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  // With `runs`, the device finishes the operation before the call returns.
  void all_reduce(bool runs) {
    void* operation = start_all_reduce();
    plugin_->stop(operation);
    if ((mask_ & static_cast<int>(kKernelEvent)) == 0) return;
    DescriptionV5 event{};
    event.type = kKernelEvent;
    event.parent = operation;
    void* kernels[kChannels];
    for (void*& kernel : kernels) plugin_->start(context_, &kernel, &event);
    for (void* kernel : kernels)
      if (runs) plugin_->stop(kernel);
  }
  void* start_all_reduce() {
    DescriptionV5 event{};
    event.type = kCollectiveEvent;
    event.collective.sequence = 0;
    event.collective.function = "AllReduce";
    event.collective.count = 1024;
    event.collective.datatype = "ncclFloat32";
    event.collective.channels = kChannels;
    void* operation = nullptr;
    plugin_->start(context_, &operation, &event);
    return operation;
  }
  void* start_proxy(void* operation) {
    DescriptionV5 event{};
    event.type = kProxyEvent;
    event.parent = operation;
    event.proxy.pid = getpid();
    event.proxy.peer = 3;
    void* proxy = nullptr;
    plugin_->start(context_, &proxy, &event);
    return proxy;
  }
  void step(void* proxy, int number) {
    DescriptionV5 event{};
    event.type = kProxyStepEvent;
    event.parent = proxy;
    event.step.step = number;
    void* step = nullptr;
    plugin_->start(context_, &step, &event);
    for (const int state : {kStepRecvWait, kStepRecvFlushWait, 12})
      plugin_->record(step, state, nullptr);
    plugin_->stop(step);
  }
  bool is_on() const { return mask_ != 0; }

 private:
  static constexpr int kChannels = 2;
  const PluginV5* plugin_ = nullptr;
  void* context_ = nullptr;
  int mask_ = 0;
};

// Measures batches that are shorter than a time slice, so that other programs disturb few of them.
template <class Once>
void measure(const char* what, long count, const Once& once) {
  constexpr long kBatches = 101;
  const long batch = count / kBatches + 1;
  std::vector<double> costs;
  for (long i = 0; i < kBatches; ++i) {
    const std::int64_t from_ns = ivy::monotonic_ns();
    for (long j = 0; j < batch; ++j) once();
    costs.push_back(static_cast<double>(ivy::monotonic_ns() - from_ns) /
                    static_cast<double>(batch));
  }
  std::sort(costs.begin(), costs.end());
  std::printf("%s: median %.1f ns, least %.1f ns\n", what, costs[kBatches / 2], costs.front());
}

int measure_calls(long count) {
  Caller caller;
  measure("a collective", count, [&caller] { caller.all_reduce(true); });
  return caller.is_on() ? 0 : 4;
}

int measure_steps(long count) {
  Caller caller;
  void* const proxy = caller.start_proxy(caller.start_all_reduce());
  int number = 0;
  measure("a step of a proxy", count, [&] { caller.step(proxy, ++number % 8); });
  return caller.is_on() ? 0 : 4;
}

int run_rank(long count, int absent) {
  Caller caller;
  const bool is_absent = number_of("IVY_RANK") == absent;
  for (long i = 1; i <= count; ++i)
    if (i < count || !is_absent) caller.all_reduce(i < count);
  std::printf("ready %s\n", std::getenv("IVY_JOB_ID"));
  std::fflush(stdout);
  for (;;) pause();
}

int serve(const char* path) {
  ivy::PageServer server(path);
  std::cout << "serving\n" << std::flush;
  std::string line;
  while (std::getline(std::cin, line)) std::cout << server.text() << "end\n" << std::flush;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string verb = argc > 2 ? argv[1] : "";
  if (verb == "serve") return serve(argv[2]);
  if (verb == "calls") return measure_calls(std::atol(argv[2]));
  if (verb == "steps") return measure_steps(std::atol(argv[2]));
  if (verb == "rank" && argc > 3) return run_rank(std::atol(argv[2]), std::atoi(argv[3]));
  std::fprintf(stderr,
               "usage: nccl_caller serve SOCKET | calls COUNT | steps COUNT | rank COUNT ABSENT\n");
  return 2;
}
