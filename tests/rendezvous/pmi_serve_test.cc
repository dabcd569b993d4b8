// SPDX-License-Identifier: Apache-2.0
// The PMI server's process as a thread of the test, with raw clients.
#include "rendezvous/server/pmi_serve.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "proto/os/descriptor.h"
#include "proto/os/files.h"
#include "proto/os/listening_socket.h"
#include "proto/os/process.h"
#include "proto/os/socket_address.h"
#include "tests/rendezvous/server_thread.h"
#include "tests/support/resource_limit.h"

namespace ivy::store {
namespace {

using test::eventually;
using test::ServerThread;

// Host 0 of two, with one rank.
class PmiServeTest : public testing::Test {
 protected:
  PmiServeTest() {
    std::ofstream(directory_ + "/token") << test::kToken;
    const int listening = listen_unix(directory_ + "/pmi.sock", SOCK_STREAM, 16).value();
    const std::vector<std::string> words = {"--listen-fd",
                                            std::to_string(listening),
                                            "--job",
                                            test::kJobId,
                                            "--generation",
                                            "0",
                                            "--host",
                                            "0",
                                            "--hosts",
                                            "2",
                                            "--ranks-on-hosts",
                                            "1,1",
                                            "--host-names",
                                            "a,b",
                                            "--directory",
                                            directory_,
                                            "--store",
                                            "127.0.0.1:" + std::to_string(store_.native_port),
                                            "--token-file",
                                            directory_ + "/token"};
    // The server runs until the process exits.
    std::thread([words] {
      run_pmi(static_cast<int>(words.size()), exec_array(words).data());
    }).detach();
    // Waits until the server runs: from then on it does not change limits of the process.
    const Descriptor stranger = new_socket();
    connect_to_server(stranger);
    EXPECT_TRUE(write_all(stranger.get(), "nobody\n"));
    EXPECT_EQ(read_from(stranger.get(), 1).value_or("nothing"), "");
  }
  ~PmiServeTest() override { std::filesystem::remove_all(directory_); }

  static Descriptor new_socket() {
    return Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  }
  void connect_to_server(const Descriptor& socket) const {
    SocketAddress address = unix_address(directory_ + "/pmi.sock");
    EXPECT_EQ(connect(socket.get(), address.get(), address.size), 0);
  }
  // Starts the fence with the other host, which never joins it.
  void enter_barrier(const Descriptor& socket) {
    EXPECT_TRUE(write_all(socket.get(),
                          "rank 0\ncmd=init pmi_version=1 pmi_subversion=1\ncmd=barrier_in\n"));
    EXPECT_TRUE(eventually([&] { return *store_.client()->count("ivy/pmi/") == 1; }));
    EXPECT_TRUE(eventually([&] { return store_.connections() == 1; }));
  }

  ServerThread store_;

 private:
  static std::string new_directory() {
    char name[] = "/tmp/ivy-pmi-test-XXXXXX";
    return mkdtemp(name);
  }
  const std::string directory_ = new_directory();
};

TEST_F(PmiServeTest, CancelsTheFenceOfAClientThatItCloses) {
  const Descriptor rank = new_socket();
  connect_to_server(rank);
  enter_barrier(rank);
  EXPECT_TRUE(write_all(rank.get(), "garbage\n"));
  EXPECT_TRUE(eventually([&] { return store_.connections() == 0; }));
}

TEST_F(PmiServeTest, CancelsTheFenceOfAClientThatHangsUp) {
  Descriptor rank = new_socket();
  connect_to_server(rank);
  enter_barrier(rank);
  rank.reset();
  EXPECT_TRUE(eventually([&] { return store_.connections() == 0; }));
}

TEST_F(PmiServeTest, WaitsForAFreeDescriptorWithoutSpinning) {
  const Descriptor rank = new_socket();
  {
    const test::NoDescriptors none;
    connect_to_server(rank);
    EXPECT_LT(test::processor_time_of(std::chrono::milliseconds(300)),
              std::chrono::milliseconds(100));
  }
  enter_barrier(rank);
}

}  // namespace
}  // namespace ivy::store
