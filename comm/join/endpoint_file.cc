// SPDX-License-Identifier: Apache-2.0
#include "comm/join/endpoint_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <utility>

#include "proto/contract/text.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"
#include "proto/os/own_directory.h"
#include "proto/wire/handshake.h"

namespace ivy::comm {
namespace {

constexpr mode_t kOthers = 077;
constexpr int kAncestorsMax = 64;

// Fails with NotFound if the file does not exist, and otherwise with PermissionDenied.
Result<std::string> read_private(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file) {
    const Code code = errno == ENOENT ? Code::kNotFound : Code::kPermissionDenied;
    return errno_error(code, "read " + path, errno);
  }
  struct stat found = {};
  if (fstat(file.get(), &found) != 0 || !S_ISREG(found.st_mode) || found.st_uid != geteuid() ||
      (found.st_mode & kOthers) != 0) {
    return Error{Code::kPermissionDenied,
                 path + " is not a regular file that only this user (" + std::to_string(geteuid()) +
                     ") owns and can write, so it is not used",
                 "remove it, or use another path"};
  }
  return read_from(file.get(), kEndpointBytesMax + 1).value_or("");
}

std::string hash_of(std::string_view key) { return hexadecimal(name_hash(key)); }

struct Process {
  std::string name;
  std::string start;
  int parent = 0;
};

Process process_of(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const std::size_t open = line.find('(');
  const std::size_t close = line.rfind(')');  // A name may contain any character.
  if (open == std::string::npos || close == std::string::npos) return {};
  Process process;
  process.name = line.substr(open + 1, close - open - 1);
  std::istringstream fields(line.substr(close + 1));
  constexpr int kParentField = 4;
  constexpr int kStartField = 22;
  std::string field;
  for (int number = 3; number <= kStartField && fields >> field; ++number) {
    if (number == kParentField) process.parent = std::atoi(field.c_str());
    if (number == kStartField) process.start = field;
  }
  return process;
}

}  // namespace

EndpointFile::EndpointFile(std::string path, std::string text)
    : path_(std::move(path)), text_(std::move(text)), owner_(getpid()) {}

EndpointFile::~EndpointFile() { remove(); }

Result<std::unique_ptr<EndpointFile>> EndpointFile::write(const std::string& path,
                                                          const Endpoint& endpoint) {
  const std::string text = encode_endpoint(endpoint);
  const std::string draft =
      path + "." + std::to_string(getpid()) + "-" + hash_of(random_bytes(kNonceBytes));
  const Descriptor file(::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) return errno_error(Code::kPermissionDenied, "write " + draft, errno);
  if (!write_all(file.get(), text) || fsync(file.get()) != 0 ||
      rename(draft.c_str(), path.c_str()) != 0) {
    const Error error = errno_error(Code::kUnavailable, "write " + path, errno);
    unlink(draft.c_str());
    return error;
  }
  return std::unique_ptr<EndpointFile>(new EndpointFile(path, text));
}

void EndpointFile::remove() {
  if (!exists_ || getpid() != owner_) return;
  exists_ = false;
  const Result<std::string> found = read_private(path_);
  if (found.ok() && *found == text_) unlink(path_.c_str());
}

Result<Endpoint> read_endpoint(const std::string& path) {
  const std::string text = IVY_TRY(read_private(path));
  Result<Endpoint> endpoint = decode_endpoint(text);
  if (endpoint.ok()) return endpoint;
  return endpoint.error().context(path);
}

Result<std::string> private_path(const std::string& key) {
  const std::string directory = "/tmp/ivycomm-" + std::to_string(geteuid());
  if (const Result<void> made = make_own_directory(directory); !made.ok())
    return Error{made.error().code,
                 made.error().message + ", so ranks cannot use it for their rendezvous",
                 "remove it, or set IVY_INIT_METHOD=file:///PATH in one of your directories"};
  return directory + "/" + hash_of(key);
}

std::string process_above(const std::string& name) {
  int pid = getppid();
  for (int steps = 0; pid > 0 && steps < kAncestorsMax; ++steps) {
    const Process process = process_of(pid);
    if (process.name == name) return std::to_string(pid) + " " + process.start;
    pid = process.parent;
  }
  return "";
}

std::string own_process() { return std::to_string(getpid()) + " " + process_of(getpid()).start; }

}  // namespace ivy::comm
