// SPDX-License-Identifier: Apache-2.0
// Stacks as three tools write them, and one paragraph for ranks at the same position.
#include "launcher/hang/stack_lines.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "launcher/hang/stack_text.h"

namespace ivy {
namespace {

using Frames = std::vector<std::string>;

constexpr const char* kInAllReduce =
    "Stack (most recent call first):\n"
    "  File \"/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py\", line 4174 "
    "in "
    "all_reduce\n"
    "  File \"/v/lib/python3.11/site-packages/torch/distributed/c10d_logger.py\", line 83 in "
    "wrapper\n"
    "  File \"/home/me/train.py\", line 12 in step\n"
    "  File \"/home/me/train.py\", line 40 in <module>\n";

TEST(StackText, ParsesFaulthandlersTextWithTheMainThreadFirst) {
  const std::vector<StackThread> threads = parse_stack(
      "faulthandler", std::string(kInAllReduce) +
                          "Thread 0x00007f01 [pin memory] (most recent call first):\n"
                          "  File \"/usr/lib/python3.11/threading.py\", line 320 in wait\n"
                          "\n"
                          "Thread 0x00007f02 (most recent call first):\n"
                          "  <no Python frame>\n"
                          "\n"
                          "Current thread 0x00007f03 (most recent call first):\n"
                          "  File \"/home/me/train.py\", line 12 in step\n");
  ASSERT_EQ(threads.size(), 2u);
  EXPECT_EQ(threads[0].name, "main thread");
  EXPECT_EQ(threads[0].frames,
            (Frames{"all_reduce (torch/distributed/distributed_c10d.py:4174)",
                    "wrapper (torch/distributed/c10d_logger.py:83)", "step (/home/me/train.py:12)",
                    "<module> (/home/me/train.py:40)"}));
  EXPECT_EQ(threads[1], (StackThread{"thread pin memory", {"wait (threading.py:320)"}}));
}

TEST(StackText, ParsesPySpysText) {
  const std::vector<StackThread> threads =
      parse_stack("py-spy",
                  "Process 77: python train.py\nPython v3.11.2 (/usr/bin/python3.11)\n\n"
                  "Thread 78 (idle): \"pin_memory\"\n    wait (threading.py:320)\n"
                  "Thread 77 (active): \"MainThread\"\n"
                  "    all_reduce (torch/distributed/distributed_c10d.py:4174)\n"
                  "    step (train.py:12)\n");
  ASSERT_EQ(threads.size(), 2u);
  EXPECT_EQ(threads[0].name, "main thread");
  EXPECT_EQ(threads[0].frames[1], "step (train.py:12)");
  EXPECT_EQ(threads[1], (StackThread{"thread pin_memory", {"wait (threading.py:320)"}}));
}

TEST(StackText, ParsesGdbsTextWithoutAddressesAndArguments) {
  const std::vector<StackThread> threads =
      parse_stack("gdb",
                  "[Thread debugging using libthread_db enabled]\n"
                  "0x00007f0 in read () from /lib/x86_64-linux-gnu/libc.so.6\n\n"
                  "Thread 2 (Thread 0x7f1 (LWP 78) \"x\"):\n"
                  "#0  0x00007f01 in ?? () from /lib/x86_64-linux-gnu/libc.so.6\n\n"
                  "Thread 1 (Thread 0x7f0 (LWP 77) \"x\"):\n"
                  "#0  0x00007f00 in __GI_read (fd=3, buf=0x7ffd) at ../sysdeps/unix/read.c:26\n"
                  "#1  stuck (value=0x7ffd) at /home/me/hang.c:5\n#2  main ()\n");
  ASSERT_EQ(threads.size(), 2u);
  EXPECT_EQ(threads[0],
            (StackThread{"main thread", {"__GI_read (read.c:26)", "stuck (hang.c:5)", "main"}}));
  EXPECT_EQ(threads[1], (StackThread{"thread", {"?? (libc.so.6)"}}));
}

TEST(StackText, SurvivesAnyText) {
  for (const char* tool : {"faulthandler", "py-spy", "gdb", "other"})
    for (const char* text : {"", "\n", "Thread ", "Thread 1 (\"", "Thread 1:\n#", "#0", "#0  0x1",
                             "  File \"", "  File \"x\", line 3", "Thread 0x [", "    ("})
      parse_stack(tool, text);
}

TEST(CollectiveOf, NamesTheLibraryAndItsCaller) {
  EXPECT_EQ(collective_of(parse_stack("faulthandler", kInAllReduce).front()),
            "torch's all_reduce at train.py:12");
  EXPECT_EQ(collective_of({"main thread", {"wait (threading.py:3)", "step (train.py:12)"}}), "");
  // The library's name for the operation precedes the caller.
  EXPECT_EQ(collective_of({"main thread",
                           {"wait (threading.py:3)", "barrier (ivycomm/communicator.py:9)",
                            "main (/x/run.py:1)"}}),
            "ivycomm's barrier at run.py:1");
}

RankEvidence python(std::uint32_t rank, const std::string& stack) {
  RankEvidence evidence;
  evidence.set_rank(rank);
  evidence.set_pid(static_cast<std::int32_t>(70 + rank));
  evidence.set_name("python3");
  evidence.set_state("S");
  evidence.set_tool("faulthandler");
  evidence.set_stack(stack);
  return evidence;
}

RankEvidence bare(std::uint32_t rank, const std::string& state, const std::string& waiting_in,
                  const std::string& note) {
  RankEvidence evidence;
  evidence.set_rank(rank);
  evidence.set_pid(static_cast<std::int32_t>(70 + rank));
  evidence.set_name("worker");
  evidence.set_state(state);
  evidence.set_waiting_in(waiting_in);
  evidence.set_note(note);
  return evidence;
}

HostStacks host(const std::string& name, const std::vector<RankEvidence>& ranks) {
  HostStacks stacks;
  stacks.host = name;
  for (const RankEvidence& rank : ranks) *stacks.evidence.add_ranks() = rank;
  return stacks;
}

TEST(StackLines, FoldEqualStacksOverRanksAndHosts) {
  const std::string user =
      "Stack (most recent call first):\n  File \"/home/me/train.py\", line 9 in load\n";
  const std::vector<HostStacks> hosts = {
      host("b", {python(5, kInAllReduce), python(3, user)}),
      host("a", {python(0, kInAllReduce), python(1, kInAllReduce), python(2, kInAllReduce)})};
  EXPECT_EQ(stack_lines(hosts, {"c"}, StackDetail::kMain),
            "ranks 0-2,5 (hosts a, b): main thread: all_reduce "
            "(torch/distributed/distributed_c10d.py:4174)\n"
            "    wrapper (torch/distributed/c10d_logger.py:83)\n"
            "    step (/home/me/train.py:12)\n"
            "    <module> (/home/me/train.py:40)\n"
            "rank 3 (host b, pid 73): main thread: load (/home/me/train.py:9)\n"
            "host c did not answer in time");
  EXPECT_EQ(stack_lines(hosts, {}, StackDetail::kBrief),
            "ranks 0-2,5 (hosts a, b): in torch's all_reduce at train.py:12\n"
            "rank 3 (host b, pid 73): in load (/home/me/train.py:9)");
  EXPECT_EQ(collective_line(hosts),
            "ranks 0-2,5 are in torch's all_reduce at train.py:12; rank 3 is in no collective");
}

TEST(StackLines, CountEqualThreads) {
  std::string text = kInAllReduce;
  for (int i = 0; i < 99; ++i)
    text += "Thread 0x" + std::to_string(i) +
            " (most recent call first):\n  File \"/x/pool.py\", line 3 in work\n\n";
  const std::string shown = stack_lines({host("a", {python(0, text)})}, {}, StackDetail::kWhole);
  EXPECT_NE(shown.find("\n  99 threads: work (/x/pool.py:3)"), std::string::npos) << shown;
}

TEST(StackLines, ShowStatesWithoutAStack) {
  const std::vector<HostStacks> hosts = {host(
      "a", {bare(0, "T", "do_signal_stop", "gdb is not on its host's PATH"),
            bare(1, "D", "nfs_wait", "no debugger can attach"), bare(2, "", "", "it has exited")})};
  EXPECT_EQ(
      stack_lines(hosts, {}, StackDetail::kBrief),
      "rank 0 (host a, pid 70): worker, stopped by a signal: no stack: gdb is not on its "
      "host's PATH\n"
      "rank 1 (host a, pid 71): worker, uninterruptible in nfs_wait: no stack: no debugger can "
      "attach\n"
      "rank 2 (host a, pid 72): it has exited");
}

TEST(StackLines, ShowTheCollectiveOnlyIfRanksDiffer) {
  EXPECT_EQ(collective_line({host("a", {python(0, kInAllReduce), python(1, kInAllReduce)})}), "");
  EXPECT_EQ(collective_line({host("a", {bare(0, "S", "", "")})}), "");
}

TEST(HasMoved, ComparesStacksAndProcessorTime) {
  const std::string user = "Stack (most recent call first):\n  File \"/x.py\", line 9 in load\n";
  RankEvidence idle = bare(0, "S", "futex", "");
  RankEvidence busy = idle;
  busy.set_cpu_ticks(100);
  RankEvidence ended = idle;
  ended.clear_state();
  EXPECT_FALSE(has_moved({host("a", {python(0, user)})}, {host("a", {python(0, user)})}));
  EXPECT_TRUE(has_moved({host("a", {python(0, user)})}, {host("a", {python(0, kInAllReduce)})}));
  EXPECT_FALSE(has_moved({host("a", {idle})}, {host("a", {idle})}));
  EXPECT_TRUE(has_moved({host("a", {idle})}, {host("a", {busy})}));
  EXPECT_TRUE(has_moved({host("a", {idle})}, {host("a", {ended})}));
  EXPECT_TRUE(has_moved({host("a", {idle})}, {host("a", {idle, bare(1, "S", "", "")})}));
}

}  // namespace
}  // namespace ivy
