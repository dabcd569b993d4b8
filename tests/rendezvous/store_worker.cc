// SPDX-License-Identifier: Apache-2.0
// A worker that uses the job's store, for tests that start it with ivyrun. In each round it sets
// its own key, adds to a common key, waits at a barrier and reads the keys of all ranks. It does
// not repeat an add whose result is unknown; it counts it. Arguments: the number of rounds, and the
// pause between them in milliseconds.
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "rendezvous/client/client.h"

namespace ivy::store {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int complain(const char* what, const Error& error) {
  std::fprintf(stderr, "%s: %s\n", what, error.message.c_str());
  return error.code == Code::kAborted ? 3 : 1;
}

int run(int rounds, std::chrono::milliseconds pause) {
  constexpr std::chrono::seconds kTimeout{120};
  const auto rank = static_cast<std::uint32_t>(std::stoul(variable("IVY_RANK")));
  const auto size = static_cast<std::uint32_t>(std::stoul(variable("IVY_WORLD_SIZE")));
  ClientOptions options;
  options.address = variable("IVY_STORE");
  options.job_id = variable("IVY_JOB_ID");
  std::ifstream token(variable("IVY_TOKEN_FILE"), std::ios::binary);
  options.token.assign(std::istreambuf_iterator<char>(token), {});
  options.generation = static_cast<std::uint32_t>(std::stoul(variable("IVY_GENERATION")));
  options.rank = rank;
  options.request_timeout = kTimeout;
  const Result<std::unique_ptr<Client>> client = Client::connect(options);
  if (!client.ok()) return complain("connect", client.error());
  int unknown = 0;
  for (int round = 1; round <= rounds; ++round) {
    const std::string mine = std::to_string(round * 100 + static_cast<int>(rank));
    const Result<void> set = (*client)->set("of" + std::to_string(rank), mine);
    if (!set.ok()) return complain("set", set.error());
    const Result<std::int64_t> added = (*client)->add("sum", 1);
    if (!added.ok() && added.error().code != Code::kUnavailable)
      return complain("add", added.error());
    unknown += added.ok() ? 0 : 1;
    const Result<std::uint64_t> met = (*client)->barrier("round", size, rank, kTimeout);
    if (!met.ok()) return complain("barrier", met.error());
    for (std::uint32_t peer = 0; peer < size; ++peer) {
      const Result<std::string> theirs = (*client)->get("of" + std::to_string(peer));
      if (!theirs.ok()) return complain("get", theirs.error());
      if (*theirs != std::to_string(round * 100 + static_cast<int>(peer))) {
        std::fprintf(stderr, "round %d: rank %u has %s\n", round, peer, theirs->c_str());
        return 1;
      }
    }
    const Result<std::uint64_t> read = (*client)->barrier("read", size, rank, kTimeout);
    if (!read.ok()) return complain("barrier", read.error());
    std::printf("round %d\n", round);
    std::fflush(stdout);
    std::this_thread::sleep_for(pause);
  }
  const Result<std::int64_t> sum = (*client)->add("sum", 0);
  if (!sum.ok()) return complain("add", sum.error());
  std::printf("sum %lld unknown %d\n", static_cast<long long>(*sum), unknown);
  return 0;
}

}  // namespace
}  // namespace ivy::store

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  return ivy::store::run(std::atoi(argv[1]), std::chrono::milliseconds(std::atoi(argv[2])));
}
