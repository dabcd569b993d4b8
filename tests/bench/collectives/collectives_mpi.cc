// SPDX-License-Identifier: Apache-2.0
// The loop of collective_loop.h over MPI; built once with each MPI's compiler wrapper.
#include <mpi.h>

#include "tests/bench/collectives/collective_loop.h"

namespace {

class Mpi {
 public:
  Mpi(int* argc, char*** argv) { MPI_Init(argc, argv); }
  ~Mpi() { MPI_Finalize(); }
  int rank() const {
    int value = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &value);
    return value;
  }
  int size() const {
    int value = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &value);
    return value;
  }
  static bool has(const std::string& operation) {
    return operation != "memcpy" && operation != "stream";
  }
  void barrier() { MPI_Barrier(MPI_COMM_WORLD); }
  void all_reduce(const float* send, float* receive, std::size_t count) {
    MPI_Allreduce(send, receive, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  void broadcast(float* buffer, std::size_t count) {
    MPI_Bcast(buffer, static_cast<int>(count), MPI_FLOAT, 0, MPI_COMM_WORLD);
  }
  void all_gather(const float* send, float* receive, std::size_t count) {
    MPI_Allgather(send, static_cast<int>(count), MPI_FLOAT, receive, static_cast<int>(count),
                  MPI_FLOAT, MPI_COMM_WORLD);
  }
  void reduce_scatter(const float* send, float* receive, std::size_t count) {
    MPI_Reduce_scatter_block(send, receive, static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                             MPI_COMM_WORLD);
  }
  void all_to_all(const float* send, float* receive, std::size_t count) {
    MPI_Alltoall(send, static_cast<int>(count), MPI_FLOAT, receive, static_cast<int>(count),
                 MPI_FLOAT, MPI_COMM_WORLD);
  }
  void stream(const float*, float*, std::size_t) {}
  static float* buffer(std::size_t floats) { return new float[floats]; }
  void maximum(double* values, std::size_t count) {
    MPI_Allreduce(MPI_IN_PLACE, values, static_cast<int>(count), MPI_DOUBLE, MPI_MAX,
                  MPI_COMM_WORLD);
  }
};

}  // namespace

int main(int argc, char** argv) {
  Mpi library(&argc, &argv);
  const bool has_processor_each = bench::pin(library.rank(), library.size());
  bench::Loop<Mpi>(library, BENCH_LIBRARY, bench::options_of(argc, argv), has_processor_each).run();
}
