// SPDX-License-Identifier: Apache-2.0
// The loop of collective_loop.h over Gloo: its TCP transport, which is all it has on one host.
// Ranks meet in a folder (BENCH_FOLDER); rank and size are ivyrun's.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <memory>

#include "tests/bench/collectives/collective_loop.h"

namespace {

int number(const char* name) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : 0;
}

class Gloo {
 public:
  Gloo()
      : context_(std::make_shared<gloo::rendezvous::Context>(number("IVY_RANK"),
                                                             number("IVY_WORLD_SIZE"))) {
    gloo::transport::tcp::attr attributes;
    attributes.hostname = "127.0.0.1";
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    gloo::rendezvous::FileStore store(std::getenv("BENCH_FOLDER"));
    context_->connectFullMesh(store, device);
  }
  int rank() const { return context_->rank; }
  int size() const { return context_->size; }
  static bool has(const std::string& operation) {
    return operation != "memcpy" && operation != "stream";
  }
  void barrier() {
    gloo::BarrierOptions options(context_);
    gloo::barrier(options);
  }
  void all_reduce(const float* send, float* receive, std::size_t count) {
    gloo::AllreduceOptions options(context_);
    options.setInput(const_cast<float*>(send), count);
    options.setOutput(receive, count);
    using Reduce = void (*)(void*, const void*, const void*, std::size_t);
    options.setReduceFunction(static_cast<Reduce>(&gloo::sum<float>));
    gloo::allreduce(options);
  }
  void broadcast(float* buffer, std::size_t count) {
    gloo::BroadcastOptions options(context_);
    options.setOutput(buffer, count);
    options.setRoot(0);
    gloo::broadcast(options);
  }
  void all_gather(const float* send, float* receive, std::size_t count) {
    gloo::AllgatherOptions options(context_);
    options.setInput(const_cast<float*>(send), count);
    options.setOutput(receive, count * static_cast<std::size_t>(size()));
    gloo::allgather(options);
  }
  // Its only one works in place on the whole vector; the copy is part of what a caller pays.
  void reduce_scatter(const float* send, float* receive, std::size_t count) {
    const std::size_t ranks = static_cast<std::size_t>(size());
    whole_.assign(send, send + count * ranks);
    std::vector<int> counts(ranks, static_cast<int>(count));
    gloo::ReduceScatterHalvingDoubling<float> algorithm(context_, {whole_.data()},
                                                        static_cast<int>(count * ranks), counts);
    algorithm.run();
    std::memcpy(receive, whole_.data(), count * sizeof(float));
  }
  void all_to_all(const float* send, float* receive, std::size_t count) {
    gloo::AlltoallOptions options(context_);
    options.setInput(const_cast<float*>(send), count * static_cast<std::size_t>(size()));
    options.setOutput(receive, count * static_cast<std::size_t>(size()));
    gloo::alltoall(options);
  }
  void stream(const float*, float*, std::size_t) {}
  static float* buffer(std::size_t floats) { return new float[floats]; }
  void maximum(double* values, std::size_t count) {
    gloo::AllreduceOptions options(context_);
    options.setOutput(values, count);
    using Reduce = void (*)(void*, const void*, const void*, std::size_t);
    options.setReduceFunction(static_cast<Reduce>(&gloo::max<double>));
    gloo::allreduce(options);
  }

 private:
  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::vector<float> whole_;
};

}  // namespace

int main(int argc, char** argv) {
  Gloo library;
  const bool has_processor_each = bench::pin(library.rank(), library.size());
  bench::Loop<Gloo>(library, "gloo", bench::options_of(argc, argv), has_processor_each).run();
}
