// SPDX-License-Identifier: Apache-2.0
// What libivycomm adds to a call of NCCL that only enqueues, with a driver and an NCCL that do
// nothing (idle_device.cc): the part that is ours, on a machine without a GPU. In a world of one.
//
//     device_calls IDLE_DEVICE LIBIVYCOMM [--beside LIBIVYCOMM] [--rounds N]
//
// One call of each in turn, and medians; it prints a Markdown table.
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/contract/ivycomm.h"

namespace {

constexpr std::size_t kBytes = 1 << 20;

void* open_library(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  std::fprintf(stderr, "device_calls: %s\n", dlerror());
  std::exit(2);
}

template <class Function>
Function* find(void* library, const char* name, Function* /*its type*/) {
  void* const found = dlsym(library, name);
  if (found != nullptr) return reinterpret_cast<Function*>(found);
  std::fprintf(stderr, "device_calls: %s\n", dlerror());
  std::exit(2);
}
#define IVY_FIND(library, name) find(library, #name, &(name))

void insist(int code, const char* why) {
  if (code == IVY_OK) return;
  std::fprintf(stderr, "device_calls: %s\n", why);
  std::exit(1);
}

// What all calls are given; two elements of each rank.
struct Given {
  void* stream = nullptr;
  void* from = nullptr;
  void* to = nullptr;
};

// A libivycomm with a world of one.
class Ours {
 public:
  Ours(const char* path, const Given& given) : library_(open_library(path)), given_(given) {
    const auto last_error = IVY_FIND(library_, ivy_last_error);
    insist(IVY_FIND(library_, ivy_init)(nullptr, &world_), last_error());
    insist(IVY_FIND(library_, ivy_prepare_device)(world_, 0, nullptr), last_error());
    how_.struct_bytes = sizeof how_;
    how_.factor = 1;
    how_.flags = IVY_ENQUEUE | IVY_ON_DEVICE;
    how_.stream = given.stream;
  }
  ~Ours() { IVY_FIND(library_, ivy_finalize)(world_); }
  Ours(const Ours&) = delete;
  Ours& operator=(const Ours&) = delete;

  std::vector<std::function<int()>> calls() {
    const auto all_reduce = IVY_FIND(library_, ivy_all_reduce);
    const auto all_gather = IVY_FIND(library_, ivy_all_gather);
    const auto reduce_scatter = IVY_FIND(library_, ivy_reduce_scatter);
    return {
        [=, this] {
          return all_reduce(world_, given_.from, given_.to, 2, IVY_F32, IVY_SUM, &how_);
        },
        [=, this] { return all_gather(world_, given_.from, given_.to, 2, IVY_F32, &how_); },
        [=, this] {
          return reduce_scatter(world_, given_.from, given_.to, 2, IVY_F32, IVY_SUM, &how_);
        },
    };
  }

 private:
  void* const library_;
  const Given& given_;
  ivy_comm* world_ = nullptr;
  ivy_call how_ = {};
};

constexpr const char* kNames[] = {"all_reduce", "all_gather", "reduce_scatter"};

std::vector<std::function<int()>> idle_calls(void* device) {
  std::vector<std::function<int()>> calls;
  for (const char* const name : {"ncclAllReduce", "ncclAllGather", "ncclReduceScatter"}) {
    using Call = int(const void*, void*, std::size_t, int, int, void*, void*);
    auto* const call = find(device, name, static_cast<Call*>(nullptr));
    calls.emplace_back([call] { return call(nullptr, nullptr, 2, 7, 0, nullptr, nullptr); });
  }
  return calls;
}

double microseconds_of(const std::function<int()>& call) {
  const auto began = std::chrono::steady_clock::now();
  insist(call(), "a call failed");
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - began)
      .count();
}

// Medians, one call of each in turn.
std::vector<double> costs_of(const std::vector<std::function<int()>>& calls, int rounds) {
  std::vector<std::vector<double>> all(calls.size());
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < calls.size(); ++i) all[i].push_back(microseconds_of(calls[i]));
  }
  std::vector<double> medians;
  for (std::vector<double>& each : all) {
    std::sort(each.begin(), each.end());
    medians.push_back(each[each.size() / 2]);
  }
  return medians;
}

Given make_given(void* device) {
  using Init = int(unsigned);
  using Allocate = int(void**, std::size_t);
  using MakeStream = int(void**, unsigned);
  Given given;
  find(device, "cuInit", static_cast<Init*>(nullptr))(0);
  auto* const allocate = find(device, "cuMemAlloc_v2", static_cast<Allocate*>(nullptr));
  allocate(&given.from, kBytes);
  allocate(&given.to, kBytes);
  find(device, "cuStreamCreate", static_cast<MakeStream*>(nullptr))(&given.stream, 1);
  return given;
}

void compare(const Given& given, void* device, const char* library, const char* beside,
             int rounds) {
  Ours ours(library, given);
  std::vector<std::vector<std::function<int()>>> ways{idle_calls(device), ours.calls()};
  std::optional<Ours> other;
  if (beside != nullptr) ways.push_back(other.emplace(beside, given).calls());
  std::printf("| | ours adds, µs |%s\n|---|---|%s\n",
              beside != nullptr ? " the build beside adds | ratio |" : "",
              beside != nullptr ? "---|---|" : "");
  for (std::size_t i = 0; i < std::size(kNames); ++i) {
    std::vector<std::function<int()>> calls;
    for (const auto& way : ways) calls.push_back(way[i]);
    const std::vector<double> costs = costs_of(calls, rounds);
    const double added = costs[1] - costs[0];
    std::printf("| %s | %.3f |", kNames[i], added);
    if (beside != nullptr) {
      std::printf(" %.3f | %.2f |", costs[2] - costs[0], added / (costs[2] - costs[0]));
    }
    std::printf("\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const char* beside = nullptr;
  int rounds = 100'000;
  bool is_understood = argc >= 3 && argc % 2 == 1;  // Each option has a value.
  for (int i = 3; is_understood && i < argc; i += 2) {
    const std::string_view word = argv[i];
    if (word == "--beside") beside = argv[i + 1];
    if (word == "--rounds") rounds = std::atoi(argv[i + 1]);
    is_understood = word == "--beside" || word == "--rounds";
  }
  if (!is_understood || rounds < 1) {
    std::fprintf(stderr, "usage: %s IDLE_DEVICE LIBIVYCOMM [--beside LIBIVYCOMM] [--rounds N]\n",
                 argv[0]);
    return 2;
  }
  setenv("IVY_CUDA_LIB", argv[1], 1);
  setenv("IVY_NCCL_LIB", argv[1], 1);
  void* const device = open_library(argv[1]);
  const Given given = make_given(device);
  compare(given, device, argv[2], beside, rounds);
}
