// SPDX-License-Identifier: Apache-2.0
// Put: a bundle over a stream into the cache. Method: the build's own bundle through the service;
// made-up archives and directories that must be rejected.
#include <fcntl.h>
#include <openssl/sha.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <fstream>
#include <sstream>

#include "agent/daemon/jobs/bundle_cache.h"
#include "agent/daemon/jobs/bundle_tar.h"
#include "tests/agent/agent_fixture.h"

namespace ivy::test {
namespace {

std::string sha256_of(const std::string& bytes) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest);
  std::string text;
  for (const unsigned char byte : digest) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

struct TarFile {
  std::string name;
  std::string content;
  char type = '0';
  std::string link = {};
};

std::string octal(std::size_t number, int digits) {
  char text[32];
  std::snprintf(text, sizeof text, "%0*zo", digits, number);
  return text;
}

constexpr std::size_t kTarBlockBytes = 512;

// Returns a ustar archive; it may have content that tar would not write.
std::string tar_of(const std::vector<TarFile>& files) {
  std::string archive;
  for (const TarFile& file : files) {
    std::string header(kTarBlockBytes, '\0');
    const auto put = [&header](std::size_t at, const std::string& text) {
      header.replace(at, text.size(), text);
    };
    put(0, file.name);
    put(100, "0000755");
    put(124, octal(file.content.size(), 11));
    put(148, "        ");
    header[156] = file.type;
    put(157, file.link);
    put(257, std::string("ustar\00000", 8));
    std::size_t sum = 0;
    for (const char byte : header) sum += static_cast<unsigned char>(byte);
    put(148, octal(sum, 6) + std::string("\0 ", 2));
    archive += header + file.content;
    archive.resize((archive.size() + kTarBlockBytes - 1) / kTarBlockBytes * kTarBlockBytes);
  }
  return archive + std::string(2 * kTarBlockBytes, '\0');
}

class AgentPutTest : public AgentFixture {
 protected:
  AgentPutTest() {
    const std::string path = std::string(IVY_TEST_BUNDLES) + "/bundle-" + architecture_ + ".run";
    std::string sha256;
    std::size_t begin = 0;
    std::ifstream(path + ".sha256") >> sha256 >> sha256 >> begin;
    std::ifstream file(path, std::ios::binary);
    std::ostringstream content;
    content << file.rdbuf();
    bundle_ = content.str().substr(begin);
  }

  agent::v1::PutBundle offer(const std::string& tar) const {
    agent::v1::PutBundle offer;
    offer.set_bundle(kBundle);
    offer.set_architecture(architecture_);
    offer.set_sha256(sha256_of(tar));
    offer.set_bytes(tar.size());
    return offer;
  }
  grpc::Status put(const agent::v1::PutBundle& offer, const std::string& tar,
                   std::string* directory = nullptr) const {
    grpc::ClientContext context;
    agent::v1::PutReply reply;
    const auto agent = stub();
    const auto writer = agent->Put(&context, &reply);
    agent::v1::PutRequest request;
    *request.mutable_bundle() = offer;
    bool is_open = writer->Write(request);
    for (std::size_t at = 0; is_open && at < tar.size(); at += 64u << 10) {
      request.set_data(tar.substr(at, 64u << 10));
      is_open = writer->Write(request);
    }
    writer->WritesDone();
    const grpc::Status status = writer->Finish();
    if (directory != nullptr) *directory = reply.directory();
    return status;
  }
  grpc::Status put(const std::string& tar) const { return put(offer(tar), tar); }
  static std::vector<std::string> names_in(const std::string& directory) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory))
      names.push_back(entry.path().filename());
    return names;
  }

  std::string bundle_;
};

TEST_F(AgentPutTest, InstallsABundleThatOpenRequested) {
  ASSERT_FALSE(bundle_.empty());
  ASSERT_TRUE(start_agent());
  StreamLauncher launcher(kBundle);
  EXPECT_EQ(AgentStream(channel(), launcher.job()).status().error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  std::string directory;
  const grpc::Status status = put(offer(bundle_), bundle_, &directory);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(directory, node_directory());
  struct stat place {};
  ASSERT_EQ(stat(bundle_directory().c_str(), &place), 0);
  EXPECT_EQ(place.st_mode & 07777, 0700u);
  launcher.open(channel());
  launcher.send_hello();
  launcher.finish();
  audit_of(launcher.job_id());
}

TEST_F(AgentPutTest, AcceptsOneOfManyConcurrentUploads) {
  ASSERT_TRUE(start_agent());
  std::vector<std::thread> putters;
  std::vector<grpc::Status> statuses(8);
  for (grpc::Status& status : statuses)
    putters.emplace_back([this, &status] { status = put(bundle_); });
  for (std::thread& putter : putters) putter.join();
  for (const grpc::Status& status : statuses) EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(names_in(bundle_directory()),
            std::vector<std::string>{std::string(kBundle) + "-" + architecture_});
}

TEST_F(AgentPutTest, RejectsABundleThatDiffersFromItsAnnouncement) {
  ASSERT_TRUE(start_agent());
  agent::v1::PutBundle announced = offer(bundle_);
  EXPECT_EQ(put(announced, bundle_.substr(0, bundle_.size() - 512)).error_code(),
            grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(put(announced, bundle_ + "x").error_code(), grpc::StatusCode::DATA_LOSS);
  announced.set_sha256(std::string(64, '0'));
  EXPECT_EQ(put(announced, bundle_).error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(names_in(bundle_directory()), std::vector<std::string>{});

  announced = offer(bundle_);
  announced.set_bytes(kMaxBundleBytes + 1);
  EXPECT_EQ(put(announced, "").error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  announced = offer(bundle_);
  announced.set_architecture("vax");
  EXPECT_EQ(put(announced, "").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  announced = offer(bundle_);
  announced.set_bundle("../../../../../tmp/x");
  EXPECT_EQ(put(announced, "").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(AgentPutTest, DoesNotInstallAProgramThatDoesNotRun) {
  ASSERT_TRUE(start_agent());
  for (const std::string& content : {std::string("#!/bin/sh\nexit 3\n"), std::string("garbage")}) {
    const grpc::Status status = put(tar_of({{.name = "ivy-node", .content = content}}));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_NE(status.error_message().find(bundle_directory()), std::string::npos);
    EXPECT_EQ(names_in(bundle_directory()), std::vector<std::string>{});
  }
}

TEST_F(AgentPutTest, SkipsADirectoryOfAnotherUser) {
  AgentServiceOptions with = options();
  with.other_bundle_directories = {root_ + "/second"};
  // A link instead of the first directory, as another user could make one in /tmp.
  std::filesystem::create_directories(root_ + "/elsewhere");
  std::filesystem::create_directory_symlink(root_ + "/elsewhere", bundle_directory());
  ASSERT_TRUE(start_agent(with));
  std::string directory;
  ASSERT_TRUE(put(offer(bundle_), bundle_, &directory).ok());
  EXPECT_EQ(directory, root_ + "/second/" + kBundle + "-" + architecture_);
  StreamLauncher launcher(kBundle);
  launcher.open(channel());
  launcher.send_hello();
  launcher.finish();
  audit_of(launcher.job_id());
}

// Mounts a tmpfs over the first directory while it exists.
class ScopedMount {
 public:
  ScopedMount(std::string path, unsigned long flags, const char* options) : path_(std::move(path)) {
    std::filesystem::create_directories(path_);
    is_mounted_ = mount("tmpfs", path_.c_str(), "tmpfs", flags, options) == 0;
  }
  ~ScopedMount() {
    if (is_mounted_) umount2(path_.c_str(), MNT_DETACH);
  }
  ScopedMount(const ScopedMount&) = delete;
  ScopedMount& operator=(const ScopedMount&) = delete;
  bool is_mounted() const { return is_mounted_; }

 private:
  const std::string path_;
  bool is_mounted_ = false;
};

TEST_F(AgentPutTest, SkipsFullAndNoexecDirectories) {
  const ScopedMount noexec(bundle_directory(), MS_NOEXEC, "");
  const ScopedMount full(root_ + "/second", 0, "size=64k");
  if (!noexec.is_mounted() || !full.is_mounted()) GTEST_SKIP() << "mounting a tmpfs takes root";
  AgentServiceOptions with = options();
  with.other_bundle_directories = {root_ + "/second", root_ + "/third"};
  ASSERT_TRUE(start_agent(with));
  std::string directory;
  const grpc::Status status = put(offer(bundle_), bundle_, &directory);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(directory, root_ + "/third/" + kBundle + "-" + architecture_);
  EXPECT_EQ(names_in(bundle_directory()), std::vector<std::string>{});
  EXPECT_EQ(names_in(root_ + "/second"), std::vector<std::string>{});
}

TEST_F(AgentPutTest, NamesEveryDirectoryInErrors) {
  const ScopedMount noexec(bundle_directory(), MS_NOEXEC, "");
  if (!noexec.is_mounted()) GTEST_SKIP() << "mounting a tmpfs takes root";
  AgentServiceOptions with = options();
  with.other_bundle_directories = {"/proc/none"};
  ASSERT_TRUE(start_agent(with));
  const grpc::Status status = put(bundle_);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_NE(status.error_message().find(bundle_directory() + ": programs may not run there"),
            std::string::npos)
      << status.error_message();
  EXPECT_NE(status.error_message().find("/proc/none"), std::string::npos);
}

// ---- Archives -----------------------------------------------------------------------------------

class BundleTarTest : public AgentFixture {
 protected:
  Result<void> unpack(const std::string& archive) {
    std::ofstream(root_ + "/tar", std::ios::binary) << archive;
    std::filesystem::create_directories(root_ + "/in");
    const int fd = open((root_ + "/tar").c_str(), O_RDONLY | O_CLOEXEC);
    const Result<void> unpacked = unpack_bundle(fd, root_ + "/in");
    close(fd);
    return unpacked;
  }
};

TEST_F(BundleTarTest, UnpacksPlainFiles) {
  const std::string large(100'000, 'x');
  ASSERT_TRUE(unpack(tar_of({{.name = "ivy-node", .content = large},
                             {.name = "empty", .content = ""},
                             {.name = "lib_x.so.1", .content = "abc"}}))
                  .ok());
  std::ifstream file(root_ + "/in/ivy-node");
  std::ostringstream content;
  content << file.rdbuf();
  EXPECT_EQ(content.str(), large);
  EXPECT_EQ(std::filesystem::file_size(root_ + "/in/empty"), 0u);
  EXPECT_EQ(std::filesystem::file_size(root_ + "/in/lib_x.so.1"), 3u);
}

TEST_F(BundleTarTest, RejectsEverythingElse) {
  const std::string good = tar_of({{.name = "a", .content = "abc"}});
  std::string damaged = good;
  damaged[0] = 'b';
  std::vector<TarFile> too_many;
  for (std::size_t i = 0; i <= kMaxBundleFiles; ++i)
    too_many.push_back({.name = "f" + std::to_string(i), .content = ""});
  const std::vector<std::string> rejected = {
      tar_of({{.name = "../a", .content = "x"}}),
      tar_of({{.name = "/etc/a", .content = "x"}}),
      tar_of({{.name = "d/a", .content = "x"}}),
      tar_of({{.name = ".hidden", .content = "x"}}),
      tar_of({{.name = "-rf", .content = "x"}}),
      tar_of({{.name = "", .content = "x"}}),
      tar_of({{.name = "link", .content = "", .type = '2', .link = "/etc/passwd"}}),
      tar_of({{.name = "hard", .content = "", .type = '1', .link = "a"}}),
      tar_of({{.name = "dir", .content = "", .type = '5'}}),
      tar_of({{.name = "device", .content = "", .type = '3'}}),
      tar_of({{.name = "long", .content = "x", .type = 'x'}}),
      tar_of(too_many),
      damaged,
      good.substr(0, 512),
      good.substr(0, 700),
      good.substr(0, 1024),
      "",
      std::string(512, 'x'),
  };
  for (std::size_t i = 0; i < rejected.size(); ++i) {
    std::filesystem::remove_all(root_ + "/in");
    const Result<void> unpacked = unpack(rejected[i]);
    ASSERT_FALSE(unpacked.ok()) << i;
    EXPECT_EQ(unpacked.error().code, Code::kDataLoss) << i;
  }
  // Two entries with the same name.
  std::filesystem::remove_all(root_ + "/in");
  EXPECT_FALSE(unpack(tar_of({{.name = "a", .content = "x"}, {.name = "a", .content = "y"}})).ok());
}

TEST(BundleName, MustBeHexadecimalOfAValidLength) {
  EXPECT_TRUE(is_bundle_name(std::string(24, 'a')));
  EXPECT_TRUE(is_bundle_name(std::string(64, '0')));
  for (const std::string& bad : std::initializer_list<std::string>{
           "", std::string(23, 'a'), std::string(65, 'a'), std::string(24, 'A'),
           std::string(22, 'a') + "/.", std::string(24, 'g')})
    EXPECT_FALSE(is_bundle_name(bad)) << bad;
}

}  // namespace
}  // namespace ivy::test
