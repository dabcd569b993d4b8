// SPDX-License-Identifier: Apache-2.0
// NCCL's profiler plug-in, called as NCCL calls it: without NCCL, a GPU or a supervisor.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "comm/nccl_profiler/profiler_interface.h"
#include "comm/nccl_profiler/recorder.h"
#include "tests/support/page_server.h"

namespace ivy::nccl_profiler {
namespace {

using comm_status::Operation;
using comm_status::Phase;

// ---- The recorder, on its own page --------------------------------------------------------------

comm_status::StatusPage* fresh_page = nullptr;

class Recording : public testing::Test {
 protected:
  explicit Recording(const char* choice = "kernels") {
    setenv("IVY_NCCL_PROFILER", choice, 1);
    const comm_status::PageShape shape{1, 1, 1, 0};
    memory_ = std::aligned_alloc(4096, *comm_status::StatusPage::bytes_of(shape));
    std::memset(memory_, 0, *comm_status::StatusPage::bytes_of(shape));
    page_.emplace(comm_status::StatusPage::format(memory_, shape));
    fresh_page = &*page_;
    EXPECT_NE(recorder_.open({0xabc, "tp", 2, 4}, context_), 0u);
  }
  ~Recording() override {
    unsetenv("IVY_NCCL_PROFILER");
    std::free(memory_);
  }

  comm_status::SlotView slot() { return page_->slot(0); }
  Handle enter(Operation operation = Operation::kAllReduce, std::uint32_t channels = 2) {
    return recorder_.enter(context_, {operation, comm_status::Dtype::kF32, 1024, -1, channels},
                           nullptr);
  }
  std::uint64_t running() {
    const auto current = slot().current(0);
    return current && current->outcome == comm_status::Outcome::kRunning ? current->sequence : 0;
  }

  void* memory_ = nullptr;
  std::optional<comm_status::StatusPage> page_;
  Recorder recorder_{[]() -> Result<comm_status::StatusPage> { return *fresh_page; }};
  Handle context_;
};

class NcclRecorder : public Recording {};

TEST_F(NcclRecorder, ShowsTheOldestOperationThatTheDeviceHasNotFinished) {
  EXPECT_EQ(slot().communicator_name(0), "2 4 0xabc tp");
  const Handle first = enter();
  EXPECT_EQ(slot().phase(0), Phase::kIssued) << "NCCL may have no events of kernels";
  recorder_.stop(first);
  const Handle second = enter();
  const Handle one = recorder_.start_kernel(first);
  EXPECT_EQ(slot().phase(0), Phase::kOnDevice);
  const Handle other = recorder_.start_kernel(first);
  recorder_.stop(one);
  EXPECT_EQ(running(), 1u);
  recorder_.stop(other);
  EXPECT_EQ(running(), 2u);
  EXPECT_EQ(slot().phase(0), Phase::kQueued);
  EXPECT_EQ(slot().finished(9).size(), 1u);
  const Handle third = enter();
  const Handle kernels[] = {recorder_.start_kernel(third), recorder_.start_kernel(third)};
  for (const Handle& kernel : kernels) recorder_.stop(kernel);
  EXPECT_EQ(running(), 0u) << "operations before the third have finished too";
  EXPECT_EQ(slot().current(0)->sequence, 3u);
  EXPECT_EQ(second.value, 2u);
}

TEST_F(NcclRecorder, ShowsTheOldestOperationDespiteAnOverflow) {
  std::vector<Handle> kept;
  for (std::uint64_t i = 0; i < Track::kTracked; ++i)
    kept.push_back(enter(Operation::kAllReduce, 1));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(enter().kind, HandleKind::kNone);
  for (std::uint64_t sequence = 1; sequence <= Track::kTracked; ++sequence) {
    EXPECT_EQ(running(), sequence);
    recorder_.stop(recorder_.start_kernel(kept[sequence - 1]));
  }
  EXPECT_EQ(running(), 0u);
  EXPECT_EQ(enter().value, Track::kTracked + 101);
  EXPECT_EQ(running(), Track::kTracked + 101);
}

TEST_F(NcclRecorder, ShowsThePeerThatAProxyWaitsFor) {
  const Handle operation = enter();
  recorder_.start_kernel(operation);
  const Proxy from{getpid(), 1, 3, 8, 1 << 19, 0};
  const Proxy to{getpid(), 1, 1, 8, 1 << 19, 1};
  const Handle receiving = recorder_.start_proxy(operation, from);
  const Handle steps[] = {recorder_.start_step(receiving, 0), recorder_.start_step(receiving, 1)};
  for (const Handle& step : steps) recorder_.record(step, kStepRecvWait);
  EXPECT_EQ(slot().tag_above(0), 4u << 1);
  recorder_.record(steps[0], kStepRecvFlushWait);
  EXPECT_EQ(slot().tag_above(0), 4u << 1) << "the second step still waits";
  recorder_.record(steps[1], kStepRecvFlushWait);
  EXPECT_EQ(slot().tag_above(0), 0u);
  const Handle sending = recorder_.start_step(recorder_.start_proxy(operation, to), 5);
  for (int i = 0; i < 3; ++i) recorder_.record(sending, kStepSendPeerWait);
  EXPECT_EQ(slot().tag_above(0), (2u << 1) + 1);
  EXPECT_EQ(slot().phase(0), Phase::kOnDevice);
  recorder_.record(sending, kStepSendWait);
  EXPECT_EQ(slot().tag_above(0), 0u);
  // A proxy in this process may work for a neighbour's process, whose pid is unknown here.
  const Proxy foreign{getpid() + 1, 1, 3, 8, 1 << 19, 0};
  EXPECT_EQ(recorder_.start_proxy(operation, foreign).kind, HandleKind::kNone);
}

Handle step_of(std::uint32_t peer, bool is_send, std::uint8_t channel = 0) {
  Handle step;
  step.kind = HandleKind::kStep;
  step.set_proxy(peer, is_send, channel);
  return step;
}

TEST(PeerWaits, DropsWaitsWhileItsTableIsFull) {
  PeerWaits waits;
  for (std::uint32_t peer = 0; peer < 8; ++peer)
    EXPECT_TRUE(waits.record(step_of(peer, false), kStepRecvWait));
  EXPECT_FALSE(waits.record(step_of(8, false), kStepRecvWait)) << "the table is full";
  for (std::uint32_t peer = 0; peer < 8; ++peer) {
    EXPECT_EQ(waits.shown(), step_of(peer, false).wait_word());
    EXPECT_TRUE(waits.record(step_of(peer, false), kStepRecvFlushWait));
  }
  EXPECT_FALSE(waits.record(step_of(8, false), kStepRecvFlushWait)) << "it was not recorded";
  EXPECT_EQ(waits.shown(), 0u);
}

TEST(PeerWaits, ShowsOneOfTwoSendsThatShareASlot) {
  // Channel 14 ^ peer 0 * 7 == channel 9 ^ peer 1 * 7.
  const Handle one = step_of(0, true, 14);
  const Handle other = step_of(1, true, 9);
  ASSERT_EQ(one.channel_peer_slot(), other.channel_peer_slot());
  PeerWaits waits;
  for (const Handle& step : {one, other, one}) {
    EXPECT_TRUE(waits.record(step, kStepSendPeerWait));
    EXPECT_EQ(waits.shown(), step.wait_word());
    EXPECT_FALSE(waits.record(step, kStepSendPeerWait)) << "a repeated report";
  }
  EXPECT_FALSE(waits.record(other, kStepSendWait));
  EXPECT_TRUE(waits.record(one, kStepSendWait));
  EXPECT_EQ(waits.shown(), 0u);
}

TEST_F(NcclRecorder, KeepsMessagesInASeparateRow) {
  enter();
  const Handle message = enter(Operation::kSend, 1);
  EXPECT_TRUE(message.is_message);
  EXPECT_EQ(slot().communicator_name(1), "2 4 0xabc tp");
  EXPECT_EQ(slot().current(1)->operation, Operation::kSend);
  EXPECT_EQ(slot().current(0)->operation, Operation::kAllReduce);
  recorder_.close(context_);
  EXPECT_EQ(slot().communicator_name(0), "");
  EXPECT_EQ(slot().communicator_name(1), "");
  recorder_.stop(message);
  EXPECT_EQ(enter().kind, HandleKind::kNone) << "the communicator is closed";
}

TEST_F(NcclRecorder, LimitsCommunicatorsToTheRowsOfThePage) {
  std::vector<Handle> contexts;
  for (std::uint64_t i = 1; i < 100; ++i) recorder_.open({i, "", 0, 2}, contexts.emplace_back());
  EXPECT_EQ(contexts[62].kind, HandleKind::kCommunicator);
  EXPECT_EQ(contexts[63].kind, HandleKind::kNone);
  EXPECT_EQ(slot().communicator_name(63), "0 2 0x3f");
  EXPECT_EQ(enter(Operation::kSend).kind, HandleKind::kNone) << "there is no row for messages";
  for (const Handle& context : contexts) recorder_.close(context);
  Handle again;
  recorder_.open({7, std::string(99, 'n'), 0, 2}, again);
  EXPECT_EQ(slot().communicator_name(1), "0 2 0x7 " + std::string(47, 'n'));
  const Handle operation = recorder_.enter(again, {Operation::kBroadcast}, nullptr);
  EXPECT_EQ(slot().current(1)->communicator_hash,
            comm_status::communicator_hash(slot().communicator_name(1)));
  EXPECT_EQ(operation.value, 1u);
}

TEST_F(NcclRecorder, ToleratesUnknownHandles) {
  const Handle operation = enter();
  std::mt19937_64 random(7);
  for (int i = 0; i < 200'000; ++i) {
    // Every second handle looks like one of this process.
    Handle wild = Handle::of(reinterpret_cast<const void*>(random()));
    if (i % 2 == 0) wild.process = context_.process;
    if (wild.kind == HandleKind::kCommunicator && wild.communicator == context_.communicator)
      continue;
    const bool is_known = wild.kind != HandleKind::kCommunicator && wild.value == operation.value;
    if (is_known) continue;
    recorder_.stop(wild);
    recorder_.record(wild, static_cast<int>(random() % 32));
    recorder_.start_kernel(wild);
    recorder_.start_step(
        recorder_.start_proxy(wild, {getpid(), 3, static_cast<int>(random()), 1, 1, 1}), 1);
    recorder_.enter(wild, {}, nullptr);
    recorder_.close(wild);
  }
  EXPECT_EQ(running(), 1u);
}

// Threads of two programs and of a proxy, on two communicators: no data races (TSan) and no lost
// operations.
TEST_F(NcclRecorder, AcceptsConcurrentThreads) {
  constexpr int kOperations = 20'000;
  Handle other;
  recorder_.open({0xdef, "", 0, 2}, other);
  std::atomic<std::uint64_t> given[kOperations] = {};
  const auto call = [this](const Handle& context) {
    return recorder_.enter(context, {Operation::kAllReduce, {}, 8, -1, 1}, nullptr);
  };
  std::atomic<int> taken = 0;
  std::thread program([&] {
    for (int i = 0; i < kOperations; ++i) {
      // More than Track::kTracked operations at once would be dropped.
      while (i - taken.load(std::memory_order_acquire) > 256) std::this_thread::yield();
      const Handle operation = call(context_);
      recorder_.stop(operation);
      given[i].store(reinterpret_cast<std::uintptr_t>(operation.pointer()),
                     std::memory_order_release);
    }
  });
  std::thread second([&] {
    for (int i = 0; i < kOperations; ++i) {
      const Handle kernel = recorder_.start_kernel(call(other));
      recorder_.stop(kernel);
    }
  });
  for (auto& one : given) {
    std::uint64_t value = 0;
    while ((value = one.load(std::memory_order_acquire)) == 0) std::this_thread::yield();
    const Handle operation = Handle::of(reinterpret_cast<const void*>(value));
    const Handle step =
        recorder_.start_step(recorder_.start_proxy(operation, {getpid(), 0, 1, 1, 1, 0}), 0);
    recorder_.record(step, kStepRecvWait);
    const Handle kernel = recorder_.start_kernel(operation);
    recorder_.record(step, kStepRecvFlushWait);
    recorder_.stop(kernel);
    ++taken;
  }
  program.join();
  second.join();
  EXPECT_EQ(running(), 0u);
  EXPECT_EQ(slot().current(1)->sequence, static_cast<std::uint64_t>(kOperations));
  EXPECT_EQ(slot().tag_above(0), 0u);
}

class NcclRecorderOfCalls : public Recording {
 protected:
  NcclRecorderOfCalls() : Recording("calls") {}
};

TEST_F(NcclRecorderOfCalls, TreatsAnOperationAsFinishedWhenItsStreamHas) {
  EXPECT_EQ(Recorder::mask_of("off"), 0u);
  EXPECT_EQ(Recorder::mask_of(nullptr) & kKernelEvent, 0u);
  EXPECT_NE(Recorder::mask_of("kernels") & kKernelEvent, 0u);
  const Handle operation = enter();
  EXPECT_EQ(running(), 1u);
  recorder_.stop(operation);
  EXPECT_EQ(running(), 0u);
  EXPECT_EQ(slot().current(0)->sequence, 1u);
}

// ---- The library, with a test double of a supervisor --------------------------------------------

class NcclProfilerPlugin : public testing::Test {
 protected:
  NcclProfilerPlugin() {
    setenv("IVY_CONTROL", server_.path().c_str(), 1);
    setenv("IVY_RANK", "5", 1);
    setenv("IVY_GENERATION", "2", 1);
    setenv("IVY_NCCL_PROFILER", "kernels", 1);
    library_ = dlopen(IVY_NCCL_PROFILER_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    EXPECT_NE(library_, nullptr) << dlerror();
  }
  ~NcclProfilerPlugin() override { unsetenv("IVY_NCCL_PROFILER"); }

  template <class PluginType>
  const PluginType& plugin(const char* name) {
    return *static_cast<const PluginType*>(dlsym(library_, name));
  }
  // Old versions get the communicator only with its operations.
  template <class Described>
  static Described event(std::uint64_t type, const char* function, const char* dtype) {
    Described event{};
    event.type = static_cast<decltype(event.type)>(type);
    event.rank = 1;
    event.collective.function = function;
    event.collective.datatype = dtype;
    event.collective.count = 64;
    event.collective.root = 3;
    event.collective.channels = 1;
    return event;
  }
  template <class PluginType, class Described>
  std::string show(const PluginType& plugin, void* context, Described event) {
    void* operation = nullptr;
    EXPECT_EQ(plugin.start(context, &operation, &event), kNcclSuccess);
    EXPECT_NE(operation, nullptr);
    Described kernel{};
    kernel.type = static_cast<decltype(kernel.type)>(kKernelEvent);
    kernel.parent = operation;
    void* channel = nullptr;
    EXPECT_EQ(plugin.stop(operation), kNcclSuccess);
    EXPECT_EQ(plugin.start(context, &channel, &kernel), kNcclSuccess);
    const std::string text = server_.text();
    EXPECT_EQ(plugin.record(channel, 22, nullptr), kNcclSuccess);
    EXPECT_EQ(plugin.stop(channel), kNcclSuccess);
    EXPECT_EQ(plugin.close(context), kNcclSuccess);
    return text;
  }

  // All tests of this process share one library and its page.
  static inline PageServer server_{testing::TempDir() + "ivy-nccl-" + std::to_string(getpid())};
  void* library_ = nullptr;
};

template <class Described>
void set_communicator(Described& event) {
  event.collective.communicator_name = "pp";
  event.collective.communicator_hash = 0x77;
}

TEST_F(NcclProfilerPlugin, SpeaksVersions1To3) {
  void* context = nullptr;
  int mask = 0;
  const auto& v1 = plugin<PluginV1>("ncclProfiler_v1");
  ASSERT_EQ(v1.open(&context, &mask), kNcclSuccess);
  ASSERT_NE(mask, 0);
  DescriptionV1 first{};
  first.type = kCollectiveEvent;
  first.rank = 1;
  first.collective = {"pp", 0x77, 0, 4, nullptr, nullptr, 64, 0, 7, 0, 0, 1};
  EXPECT_NE(show(v1, context, first).find("1 0 0x77 pp: all_reduce #1 64 f32, on the device"),
            std::string::npos);
  const auto& v2 = plugin<PluginV2>("ncclProfiler_v2");
  ASSERT_EQ(v2.open(&context, &mask), kNcclSuccess);
  auto second = event<DescriptionV2>(kCollectiveEvent, "Broadcast", "ncclBfloat16");
  set_communicator(second);
  EXPECT_NE(show(v2, context, second).find("1 0 0x77 pp: broadcast #1 64 bf16, on the device"),
            std::string::npos);
  const auto& v3 = plugin<PluginV3>("ncclProfiler_v3");
  ASSERT_EQ(v3.open(&context, &mask), kNcclSuccess);
  auto third = event<DescriptionV3>(kCollectiveEvent, "ReduceScatter", "ncclFloat8e4m3");
  set_communicator(third);
  EXPECT_NE(show(v3, context, third).find("1 0 0x77 pp: reduce_scatter #1 64 f8e4m3"),
            std::string::npos);
}

TEST_F(NcclProfilerPlugin, SpeaksVersions4To7) {
  void* context = nullptr;
  int mask = 0;
  const auto& v4 = plugin<PluginV4>("ncclProfiler_v4");
  ASSERT_EQ(v4.open(&context, &mask, "dp", 0x88, 1, 8, 6, nullptr), kNcclSuccess);
  EXPECT_NE(show(v4, context, event<DescriptionV4>(kCollectiveEvent, "AllGather", "ncclInt8"))
                .find("rank 5: 6 8 0x88 dp: all_gather #1 64 i8, on the device"),
            std::string::npos);
  for (const char* name : {"ncclProfiler_v5", "ncclProfiler_v6", "ncclProfiler_v7"}) {
    const auto& plugin_of_name = plugin<PluginV5>(name);
    ASSERT_EQ(plugin_of_name.open(&context, 0x99, &mask, nullptr, 1, 8, 6, nullptr), kNcclSuccess);
    EXPECT_NE(show(plugin_of_name, context,
                   event<DescriptionV5>(kCopyCollectiveEvent, "AlltoAll", "ncclFloat64"))
                  .find("rank 5: 6 8 0x99: all_to_all #1 64 f64"),
              std::string::npos)
        << name;
    EXPECT_EQ(server_.text().find("0x99"), std::string::npos) << "the communicator is closed";
  }
  const auto& v7 = plugin<PluginV7>("ncclProfiler_v7");
  for (void* further : v7.further) EXPECT_EQ(further, nullptr);
}

TEST_F(NcclProfilerPlugin, AcceptsAMissingAnswer) {
  const auto& v5 = plugin<PluginV5>("ncclProfiler_v5");
  int mask = 0;
  void* context = nullptr;
  EXPECT_EQ(v5.open(nullptr, 1, &mask, nullptr, 1, 1, 0, nullptr), kNcclSuccess);
  EXPECT_EQ(v5.open(&context, 1, nullptr, nullptr, 1, 1, 0, nullptr), kNcclSuccess);
  ASSERT_EQ(v5.open(&context, 1, &mask, nullptr, 1, 1, 0, nullptr), kNcclSuccess);
  EXPECT_EQ(v5.start(context, nullptr, nullptr), kNcclSuccess);
  void* handle = context;
  EXPECT_EQ(v5.start(context, &handle, nullptr), kNcclSuccess);
  EXPECT_EQ(handle, nullptr);
  auto unknown = event<DescriptionV5>(1u << 9, nullptr, nullptr);
  EXPECT_EQ(v5.start(context, &handle, &unknown), kNcclSuccess);
  EXPECT_EQ(handle, nullptr);
  auto nameless = event<DescriptionV5>(kCollectiveEvent, nullptr, nullptr);
  EXPECT_EQ(v5.start(context, &handle, &nameless), kNcclSuccess);
  EXPECT_EQ(v5.start(nullptr, &handle, &nameless), kNcclSuccess);
  EXPECT_EQ(handle, nullptr);
  EXPECT_EQ(v5.stop(nullptr), kNcclSuccess);
  EXPECT_EQ(v5.record(nullptr, 20, nullptr), kNcclSuccess);
  EXPECT_EQ(v5.close(nullptr), kNcclSuccess);
  EXPECT_EQ(v5.close(context), kNcclSuccess);
}

TEST_F(NcclProfilerPlugin, GivesAForkedChildASeparatePage) {
  const auto& v5 = plugin<PluginV5>("ncclProfiler_v5");
  int mask = 0;
  void* context = nullptr;
  ASSERT_EQ(v5.open(&context, 0x55, &mask, nullptr, 1, 1, 0, nullptr), kNcclSuccess);
  const pid_t child = fork();
  if (child == 0) {
    auto call = event<DescriptionV5>(kCollectiveEvent, "AllReduce", "ncclInt32");
    void* handle = nullptr;
    v5.start(context, &handle, &call);
    if (handle != nullptr) _exit(1);
    void* own = nullptr;
    v5.open(&own, 0x66, &mask, nullptr, 1, 1, 0, nullptr);
    v5.start(own, &handle, &call);
    _exit(handle != nullptr ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  const std::string text = server_.text();
  EXPECT_NE(text.find("0x55: nothing yet"), std::string::npos) << text;
  EXPECT_NE(text.find("0x66: all_reduce #1"), std::string::npos) << text;
  EXPECT_EQ(v5.close(context), kNcclSuccess);
}

TEST_F(NcclProfilerPlugin, IsDisabledWithoutASupervisorOrByConfiguration) {
  // In separate processes, because this one may have a page already.
  const auto mask_with = [this](const char* name, const char* value) {
    const pid_t child = fork();
    if (child == 0) {
      setenv(name, value, 1);
      int mask = 77;
      void* context = nullptr;
      const auto result =
          plugin<PluginV5>("ncclProfiler_v5").open(&context, 3, &mask, nullptr, 1, 1, 0, nullptr);
      _exit(result == kNcclSuccess && mask == 0 && context == nullptr ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return status;
  };
  EXPECT_EQ(mask_with("IVY_CONTROL", "/nowhere/control"), 0);
  EXPECT_EQ(mask_with("IVY_CONTROL", std::string(300, 'p').c_str()), 0);
  EXPECT_EQ(mask_with("IVY_RANK", "three"), 0);
  EXPECT_EQ(mask_with("IVY_NCCL_PROFILER", "off"), 0);
}

}  // namespace
}  // namespace ivy::nccl_profiler
