// SPDX-License-Identifier: Apache-2.0
// Two builds with different protocols cannot be ranks of one job, and both report that.
#include "comm/contract/protocol.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include "comm/transports/shm/shared_segment.h"
#include "proto/contract/text.h"
#include "tests/comm/world.h"

namespace ivy::comm::test {
namespace {

// The same library with another protocol number: tests/comm/other_protocol.cc.
constexpr std::uint64_t kOther = 0x0123456789abcdefU;

bool says(const std::string& text, const std::string& word) {
  return text.find(word) != std::string::npos;
}

// ivy_init and ivy_last_error of one build.
struct Build {
  decltype(&ivy_init) init = &ivy_init;
  decltype(&ivy_last_error) last_error = &ivy_last_error;
};

Build other_build() {
  void* const library = dlopen(IVY_DOUBLES "/libcomm_other_protocol.so", RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(library, nullptr) << dlerror();
  if (library == nullptr) return {};
  return {reinterpret_cast<decltype(&ivy_init)>(dlsym(library, "ivy_init")),
          reinterpret_cast<decltype(&ivy_last_error)>(dlsym(library, "ivy_last_error"))};
}

class ProtocolTest : public ::testing::TestWithParam<Hosts> {};
INSTANTIATE_TEST_SUITE_P(Hosts, ProtocolTest, ::testing::Values(one_host(2), host_each(2)),
                         [](const auto& hosts) { return hosts_text(hosts.param); });

TEST_P(ProtocolTest, NamesRanksOfDifferentBuildsAtInit) {
  expect_ok(run_world(GetParam(), [](int rank) {
    const Build build = rank == 1 ? other_build() : Build();
    ivy_options options = {};
    options.struct_bytes = sizeof options;
    options.rank = -1;
    options.world_size = -1;
    options.timeout_ms = scaled_time(seconds(20)).count();
    ivy_comm* world = nullptr;
    ASSERT_EQ(build.init(&options, &world), IVY_FAILED_PRECONDITION);
    const std::string text = build.last_error();
    const std::string ours = hexadecimal(protocol_identity());
    EXPECT_TRUE(says(text, "rank 0") && says(text, "rank 1")) << text;
    EXPECT_TRUE(says(text, ours) && says(text, hexadecimal(kOther))) << text;
  }));
}

// Returns empty memory, like a supervisor's.
int empty_memory(std::uint32_t members) {
  SegmentGeometry geometry;
  geometry.member_count = members;
  const int memory = memfd_create("protocol-test", MFD_CLOEXEC);
  EXPECT_EQ(ftruncate(memory, static_cast<off_t>(geometry.total_bytes())), 0);
  return memory;
}

TEST(ProtocolSegmentTest, RejectsMemoryAdoptedByAnotherBuild) {
  const int memory = empty_memory(2);
  const auto first = SharedSegment::adopt(dup(memory), dup(memory), 2);
  ASSERT_TRUE(first.ok()) << first.error().message;
  EXPECT_TRUE(SharedSegment::adopt(dup(memory), dup(memory), 2).ok());
  EXPECT_TRUE(SharedSegment::attach(dup(memory), 2).ok());

  (*first)->header().protocol.store(kOther);
  for (const auto& found :
       {SharedSegment::adopt(dup(memory), dup(memory), 2), SharedSegment::attach(dup(memory), 2)}) {
    ASSERT_FALSE(found.ok());
    EXPECT_TRUE(says(found.error().message, hexadecimal(kOther))) << found.error().message;
    EXPECT_TRUE(says(found.error().message, hexadecimal(protocol_identity())));
  }
  EXPECT_EQ((*first)->header().protocol.load(), kOther);
  close(memory);
}

}  // namespace
}  // namespace ivy::comm::test
