// SPDX-License-Identifier: Apache-2.0
// torchrun mode without a network: the command lines that select it, and the nodes that form one
// job.
#include <gtest/gtest.h>

#include <fstream>

#include "launcher/join/join_key.h"
#include "launcher/join/join_wire.h"
#include "launcher/join/joined_node_list.h"
#include "launcher/options/options.h"
#include "proto/contract/exit_code.h"

namespace ivy {
namespace {

using Words = std::vector<std::string>;

Result<ParsedCommandLine> parse(const Words& words, const Environment& environment = {}) {
  return parse_command_line(words, environment);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

const Words kNode2 = {"--nnodes", "4", "--node-rank", "2", "--master-addr", "h0", "w.py", "a b"};

TEST(JoinOptions, AcceptANodeRankWithANumberOfNodes) {
  const auto parsed = parse(kNode2);
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  const Options& options = parsed->options;
  EXPECT_EQ(options.node_rank, 2);
  EXPECT_EQ(options.join_address, "h0");
  EXPECT_EQ(options.join_port, 29500);
  // ivyrun chooses the address and port of the workers.
  EXPECT_EQ(options.master_addr, "");
  EXPECT_EQ(options.port_high, 0);
  EXPECT_EQ(options.notes.size(), 0u);
  EXPECT_EQ(options.join_terms.back().second, "w.py 'a b'");
}

TEST(JoinOptions, UseTheVariablesOfAnOperator) {
  const Environment pod = {{"PET_NNODES", "2:3"},         {"PET_NODE_RANK", "1"},
                           {"PET_NPROC_PER_NODE", "8"},   {"PET_MASTER_ADDR", "job-master-0"},
                           {"PET_MASTER_PORT", "23456"},  {"PET_RDZV_ID", "job"},
                           {"PET_RDZV_BACKEND", "static"}};
  const auto parsed = parse({"train.py"}, pod);
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_EQ(parsed->options.node_rank, 1);
  EXPECT_EQ(parsed->options.min_nodes, 2);
  EXPECT_EQ(parsed->options.join_address, "job-master-0");
  EXPECT_EQ(parsed->options.join_port, 23456);
  EXPECT_EQ(parsed->options.run_id, "job");
  EXPECT_EQ(parsed->options.port_low, 0);
}

TEST(JoinOptions, KeepTheMeaningOfANodeRankWithoutNodes) {
  for (const Words& words :
       {Words{"--node-rank", "0", "x"}, Words{"-H", "a,b", "--node-rank=0", "x"},
        Words{"--node-rank", "0", "--nnodes", "1", "x"}}) {
    const auto parsed = parse(words);
    ASSERT_TRUE(parsed.ok());
    EXPECT_FALSE(parsed->options.node_rank);
    EXPECT_EQ(parsed->options.notes.size(), 1u);
  }
}

TEST(JoinOptions, RejectContradictions) {
  const std::pair<Words, const char*> cases[] = {
      {{"--node-rank", "1", "x"}, "started only once"},
      {{"-H", "a,b", "--nnodes", "2", "--node-rank", "1", "x"}, "started only once"},
      {{"--nnodes", "2", "--node-rank", "2", "--master-addr", "h", "x"}, "nodes 0 to 1"},
      {{"--nnodes", "2", "--node-rank", "1", "x"}, "needs the address of node 0"},
      {{"--nnodes", "2", "--node-rank", "-1", "x"}, "--node-rank"},
      {{"--nnodes", "2", "--node-rank", "0", "--detach", "x"}, "--detach cannot be used with"},
      {{"--nnodes", "2", "--node-rank", "0", "-n", "4", "x"}, "-n cannot be used with"},
  };
  for (const auto& [words, printed] : cases) {
    const auto parsed = parse(words);
    ASSERT_FALSE(parsed.ok()) << printed;
    EXPECT_TRUE(contains(parsed.error().message, printed)) << parsed.error().message;
    EXPECT_EQ(parsed.error().fix.empty(), printed == std::string("--node-rank")) << printed;
  }
}

JoiningNode node(int rank, const std::string& host, const std::string& process = "p") {
  return {
      rank,    host,     "10.0.0." + std::to_string(rank),
      process, "build1", {{"--nnodes", "3:3"}, {"--nproc-per-node", "8"}, {"program", "train.py"}}};
}

TEST(JoinedNodeListTest, IsCompleteWhenEveryRankHasJoined) {
  JoinedNodeList list(node(0, "h0"), 3, 3);
  EXPECT_EQ(list.missing_text(), "nodes 1-2");
  EXPECT_FALSE(list.add(node(2, "h2")));
  EXPECT_EQ(list.missing_text(), "node 1");
  EXPECT_FALSE(list.is_enough());
  EXPECT_FALSE(list.add(node(1, "h2")));
  EXPECT_TRUE(list.is_complete());
  const std::vector<std::pair<int, std::string>> names = {{0, "h0"}, {1, "h2"}, {2, "h2.node2"}};
  EXPECT_EQ(list.names(), names);
  list.leave(1);
  EXPECT_FALSE(list.is_complete());
}

TEST(JoinedNodeListTest, IsEnoughAtTheMinimum) {
  JoinedNodeList list(node(0, "h0"), 3, 2);
  EXPECT_FALSE(list.is_enough());
  EXPECT_FALSE(list.add(node(2, "h2")));
  EXPECT_TRUE(list.is_enough());
  EXPECT_FALSE(list.is_complete());
}

TEST(JoinedNodeListTest, AcceptsTheSameProcessAgain) {
  JoinedNodeList list(node(0, "h0"), 2, 2);
  EXPECT_FALSE(list.add(node(1, "h1", "one")));
  EXPECT_FALSE(list.add(node(1, "h1", "one")));
  const auto rejection = list.add(node(1, "h2", "two"));
  ASSERT_TRUE(rejection);
  EXPECT_EQ(rejection->id, "IVY-J002");
  EXPECT_TRUE(contains(rejection->cause, "h1")) << rejection->cause;
  EXPECT_TRUE(contains(rejection->cause, "h2")) << rejection->cause;
  EXPECT_EQ(rejection->exit_code, kExitRejected);
}

TEST(JoinedNodeListTest, NamesADifferenceWithBothValues) {
  JoinedNodeList list(node(0, "h0"), 3, 3);
  JoiningNode other = node(1, "h1");
  other.terms[1].second = "4";
  const auto by_value = list.add(other);
  ASSERT_TRUE(by_value);
  EXPECT_EQ(by_value->what,
            "node 1 (h1) was started with a different --nproc-per-node than node 0");
  EXPECT_EQ(by_value->cause, "node 0 (h0): 8\nnode 1 (h1): 4");
  other = node(1, "h1");
  other.build = "build2";
  EXPECT_TRUE(contains(list.add(other)->what, "a different build"));
  other = node(1, "h1");
  other.terms.clear();
  EXPECT_EQ(list.add(other)->id, "IVY-J001");
  EXPECT_EQ(list.add(node(3, "h3"))->id, "IVY-J002");
  EXPECT_EQ(list.add(node(0, "h9", "other"))->id, "IVY-J002");
}

TEST(JoinKey, DependsOnTheSecretAndTheRunId) {
  const auto key = [](const std::string& id, const Environment& caller,
                      const std::string& file = {}) {
    JoinOptions options;
    options.run_id = id;
    options.join_secret_file = file;
    return join_key(options, caller);
  };
  const Environment secret = {{kJoinSecretVariable, "0123456789abcdef"}};
  EXPECT_FALSE(key("a", {})->is_secret);
  EXPECT_TRUE(key("a", secret)->is_secret);
  EXPECT_EQ(key("a", {})->key.size(), 32u);
  EXPECT_NE(key("a", {})->key, key("b", {})->key);
  EXPECT_NE(key("a", {})->key, key("a", secret)->key);
  const std::string path = testing::TempDir() + "/ivy_join_secret";
  std::ofstream(path) << "0123456789abcdef\n";
  EXPECT_EQ(key("a", {}, path)->key, key("a", secret)->key);
  EXPECT_TRUE(contains(key("a", {{kJoinSecretVariable, "short"}}).error().message, "5 bytes"));
  EXPECT_TRUE(contains(key("a", {}, "/no/such").error().message, "/no/such"));
}

TEST(JoinWire, DecodesMessagesForEveryChunking) {
  join::NodeMessage message;
  *message.mutable_join() = encode_node(node(2, "h\x1b[2J"));
  const std::string bytes = encode_join(message) + encode_join(message);
  CtlDecoder decoder;
  std::vector<JoiningNode> seen;
  const auto take = [&](const join::NodeMessage& one) {
    seen.push_back(decode_node(one.join(), "10.0.0.9"));
    return true;
  };
  for (const char byte : bytes)
    ASSERT_TRUE(take_messages<join::NodeMessage>(decoder, std::string_view(&byte, 1), take));
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[0].rank, 2);
  EXPECT_EQ(seen[0].terms.size(), 3u);
  EXPECT_EQ(seen[0].host, "h\\x1B[2J");
  EXPECT_FALSE(take_messages<join::NodeMessage>(decoder, std::string(8, '\xff'), take));
}

}  // namespace
}  // namespace ivy
