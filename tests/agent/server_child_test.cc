// SPDX-License-Identifier: Apache-2.0
// Server processes that the supervisor runs next to the workers: how they start, and why a start
// fails.
#include "agent/node/spawn/server_child.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/os/argument_file.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

// Addresses of 1,100 hosts with ten each are longer than the kernel's limit for one argument.
std::string long_list() {
  std::string list;
  for (int i = 0; i < 11'000; ++i) list += "10.123.234." + std::to_string(i % 256) + ",";
  return list;
}

int reap(pid_t pid) {
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return status;
}

TEST(ServerChildTest, TakesAListThatIsTooLongForAnArgument) {
  DescriptorPair out = make_pipe();
  // Prints the file whose descriptor is the last argument.
  ServerChild child{"/bin/sh", {"sh", "-c", "cat /proc/self/fd/$2", "sh"}, {}, false};
  child.descriptors = {{out.second.get(), STDOUT_FILENO}};
  child.long_arguments = {"--torch-peers", long_list()};
  const pid_t pid = start_server(std::move(child));
  ASSERT_GT(pid, 0);
  out.second.reset();
  const std::optional<std::string> read = read_from(out.first.get(), 1u << 20);
  EXPECT_EQ(reap(pid), 0);
  EXPECT_EQ(read, std::string("--torch-peers") + '\0' + long_list() + '\0');
}

TEST(ServerChildTest, ReportsWhyAProgramCouldNotBeExecuted) {
  struct Row {
    std::string program;
    std::string argument;
    const char* why;
  };
  for (const Row& row : {Row{"/bin/true", long_list(), "Argument list too long"},
                         Row{"/nonexistent/program", "x", "No such file or directory"},
                         Row{"/etc/passwd", "x", "Permission denied"}}) {
    Descriptor exec_error;
    const pid_t pid = start_server({row.program, {"x", row.argument}, {}, false}, &exec_error);
    ASSERT_GT(pid, 0);
    EXPECT_EQ(server_end("the store", reap(pid), exec_error),
              std::string("the store could not be executed: ") + row.why);
  }
}

TEST(ServerChildTest, ReportsHowAProgramExited) {
  Descriptor exec_error;
  const pid_t pid = start_server({"/bin/sh", {"sh", "-c", "exit 3"}, {}, false}, &exec_error);
  ASSERT_GT(pid, 0);
  EXPECT_EQ(server_end("the store", reap(pid), exec_error), "the store exited with code 3");
}

TEST(ArgumentFileTest, ReadsWhatWasWritten) {
  Descriptor file = make_argument_file({"--torch-peers", "", "a b"});
  ASSERT_TRUE(file);
  std::string number = std::to_string(file.release());
  std::string verb = "serve";
  std::string option(kArgumentsFd);
  char* argv[] = {verb.data(), option.data(), number.data()};
  const auto read = with_argument_file(3, argv);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*read, (std::vector<std::string>{"serve", "--torch-peers", "", "a b"}));
  const auto plain = with_argument_file(1, argv);
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(*plain, (std::vector<std::string>{"serve"}));
}

}  // namespace
}  // namespace ivy
