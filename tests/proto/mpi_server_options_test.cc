// SPDX-License-Identifier: Apache-2.0
#include "proto/wire/mpi_server_options.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "proto/contract/text.h"

namespace ivy {
namespace {

const std::string kJob = "0123456789abcdef0123456789abcdef";

std::vector<std::string> words(const std::string& line) {
  std::vector<std::string> all;
  for (const std::string_view word : words_of(line)) all.emplace_back(word);
  return all;
}

const std::string kLine = "--listen-fd 3 --job " + kJob +
                          " --generation 2 --host 1 --hosts 2 --ranks-on-hosts 2,3"
                          " --host-names a,b --directory /tmp/job";

TEST(MpiServerOptionsTest, ReadsTheSupervisorsLine) {
  const Result<MpiServerOptions> read =
      parse_mpi_server_options(words(kLine + " --store h:1 --token-file t"));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->listen_fd, 3);
  EXPECT_EQ(read->job_id, kJob);
  EXPECT_EQ(read->generation, 2u);
  EXPECT_EQ(read->host, 1u);
  EXPECT_EQ(read->ranks_on_hosts, (std::vector<std::uint32_t>{2, 3}));
  EXPECT_EQ(read->host_names, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(read->directory, "/tmp/job");
  EXPECT_EQ(read->store, "h:1");
  EXPECT_EQ(read->token_file, "t");
}

std::string rejection(const std::string& line) {
  const Result<MpiServerOptions> read = parse_mpi_server_options(words(line));
  return read.ok() ? "" : read.error().message;
}

std::string replaced(std::string from, const std::string& to) {
  std::string line = kLine;
  line.replace(line.find(from), from.size(), to);
  return line;
}

TEST(MpiServerOptionsTest, NamesTheWrongOption) {
  const std::pair<std::string, std::string> cases[] = {
      {kLine + " --colour red", "unknown option \"--colour\""},
      {kLine + " --store", "--store has no value"},
      {kLine + " --store h:1", "--store needs --token-file"},
      {replaced("--host 1", ""), "--host is missing"},
      {replaced("--host 1", "--host one"), "--host \"one\" is not a number"},
      {replaced("--host 1", "--host 2"), "--host must be less than --hosts"},
      {replaced("--hosts 2", "--hosts 3"), "--hosts 3 differs from the number of --host-names"},
      {replaced("2,3", "2,3,4"), "--hosts 2 differs from the number of --ranks-on-hosts"},
      {replaced("2,3", "2,x"), "--ranks-on-hosts: \"x\" is not a number"},
      {replaced("2,3", "0,0"), "--ranks-on-hosts: a job has 1 to 16777216 ranks"},
      {replaced(kJob, "../../etc"), "--job \"../../etc\" is not a job id"},
      {replaced("/tmp/job", "job"), "--directory is not an absolute path"},
      {replaced("--listen-fd 3", "--listen-fd -1"), "--listen-fd is negative"},
  };
  for (const auto& [line, expected] : cases)
    EXPECT_NE(rejection(line).find(expected), std::string::npos) << line << "\n" << rejection(line);
}

}  // namespace
}  // namespace ivy
