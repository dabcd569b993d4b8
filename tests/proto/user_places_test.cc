#include "proto/os/user_places.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

using Places = std::vector<std::string>;

TEST(UserPlaces, ParentsOfJobsInTheirOrder) {
  EXPECT_EQ(job_parents(1000, nullptr), (Places{"/tmp/ivyrun-1000", "/dev/shm/ivyrun-1000"}));
  EXPECT_EQ(job_parents(0, "/run/user/0"),
            (Places{"/tmp/ivyrun-0", "/dev/shm/ivyrun-0", "/run/user/0/ivyrun"}));
}

TEST(UserPlaces, ARuntimeDirectoryThatIsNoAbsolutePathIsNone) {
  for (const char* value : {static_cast<const char*>(nullptr), "", "run/user/0", "."}) {
    EXPECT_EQ(place_in_runtime_directory(value), "");
    EXPECT_EQ(job_parents(7, value).size(), 2u);
  }
}

TEST(UserPlaces, JobIds) {
  EXPECT_TRUE(is_job_id("0123456789abcdef0123456789abcdef"));
  EXPECT_FALSE(is_job_id("0123456789ABCDEF0123456789abcdef"));
  EXPECT_FALSE(is_job_id("0123456789abcdef0123456789abcde"));
  EXPECT_FALSE(is_job_id("../../../../../../../../../../.."));
  EXPECT_FALSE(is_job_id(""));
}

}  // namespace
}  // namespace ivy
