// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/collect_rank_facts.h"

#include <pwd.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <utility>

#include "comm/nccl/driver.h"
#include "comm/nccl/library.h"
#include "proto/os/files.h"
#include "proto/os/interfaces.h"
#include "proto/os/process.h"

extern char** environ;

namespace ivy::comm::nccl {
namespace {

// Returns the interfaces that are up, each with its first address that is not link-local IPv6: NCCL
// considers only these.
std::vector<Interface> interfaces() {
  std::vector<Interface> found;
  for (const InterfaceAddress& one : interface_addresses()) {
    const bool is_known = std::any_of(found.begin(), found.end(), [&](const Interface& known) {
      return known.name == one.interface;
    });
    if (!is_known) found.push_back({one.interface, one.address, one.prefix_bits});
  }
  return found;
}

std::uint64_t limit_of(decltype(RLIMIT_STACK) which) {
  rlimit limit = {};
  if (getrlimit(which, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return ~0ULL;
  return limit.rlim_cur;
}

// Returns the variables that preflight.h compares between ranks.
std::map<std::string, std::string> shared_variables() {
  std::map<std::string, std::string> variables;
  for (char** one = environ; *one != nullptr; ++one) {
    const std::string_view text = *one;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    if (!text.starts_with("NCCL_") && text.substr(0, equals) != "IVY_DEVICE_CHECK") continue;
    variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

bool is_check(std::string_view word) {
  return word.empty() || word == "every" || word == "lagged" || word == "first";
}

std::string user_name() {
  passwd entry = {};
  passwd* found = nullptr;
  char buffer[4096];
  const int status = getpwuid_r(geteuid(), &entry, buffer, sizeof buffer, &found);
  return status == 0 && found != nullptr ? found->pw_name : "";
}

bool has_line(const std::filesystem::path& path, std::string_view wanted) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.find(wanted) != std::string::npos && !line.starts_with('#')) return true;
  }
  return false;
}

void add_host(RankFacts& facts) {
  const std::string boot = read_file("/proc/sys/kernel/random/boot_id", 64).value_or("");
  facts.machine = boot.substr(0, boot.find('\n'));
  std::error_code unknown;
  facts.network = std::filesystem::read_symlink("/proc/self/ns/net", unknown).string();
  facts.interfaces = interfaces();
  facts.variables = shared_variables();
  const char* const shares = std::getenv("IVY_OVERSUBSCRIBE");
  facts.shares_devices = shares != nullptr && std::string_view(shares) == "1";
  std::error_code ignored;
  const std::filesystem::directory_iterator adapters("/sys/class/infiniband", ignored);
  facts.has_infiniband = !ignored && adapters != std::filesystem::directory_iterator();
  struct statvfs space = {};
  if (statvfs("/dev/shm", &space) == 0) {
    facts.limits.shared_memory_free = static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize;
  }
  facts.user = user_name();
  facts.limits.may_have_shared_memory_removed =
      may_have_shared_memory_removed("/", geteuid(), facts.user);
  facts.limits.locked_memory = limit_of(RLIMIT_MEMLOCK);
  facts.limits.stack = limit_of(RLIMIT_STACK);
  facts.limits.open_files = limit_of(RLIMIT_NOFILE);
}

void set_error(RankFacts& facts, const Error& error) {
  facts.error = error.message;
  facts.error_fix = error.fix;
}

}  // namespace

RankFacts collect_rank_facts(std::int32_t rank, const std::string& host, int device) {
  RankFacts facts;
  facts.rank = rank;
  facts.host = host;
  facts.pid = getpid();
  add_host(facts);
  const Result<const Driver*> driver = Driver::load();
  if (!driver.ok()) {
    set_error(facts, driver.error());
    return facts;
  }
  facts.driver_version = (*driver)->version();
  const Result<DeviceFacts> described = (*driver)->facts_of(device);
  if (!described.ok()) {
    set_error(facts, described.error());
    return facts;
  }
  facts.uuid = described->uuid;
  facts.bus = described->bus;
  const Result<const Library*> library = Library::load();
  if (!library.ok()) {
    set_error(facts, library.error());
    return facts;
  }
  const auto check = facts.variables.find("IVY_DEVICE_CHECK");
  if (check != facts.variables.end() && !is_check(check->second)) {
    facts.error = "IVY_DEVICE_CHECK=" + check->second + " is not one of every, lagged, first";
    facts.error_fix = "set it to one of them, or unset it";
  }
  facts.nccl_version = (*library)->version();
  facts.nccl_path = (*library)->path();
  return facts;
}

bool may_have_shared_memory_removed(const std::filesystem::path& root, std::uint32_t user,
                                    const std::string& user_name) {
  constexpr std::uint32_t kFirstRegularUid = 1000;  // logind never removes files of system users.
  std::error_code none;
  if (user < kFirstRegularUid || !std::filesystem::exists(root / "run/systemd/users", none)) {
    return false;
  }
  if (has_line(root / "proc/self/cgroup", "/user.slice/")) return false;
  if (std::filesystem::exists(root / "var/lib/systemd/linger" / user_name, none)) return false;
  if (has_line(root / "etc/systemd/logind.conf", "RemoveIPC=no")) return false;
  for (const char* const folder : {"etc", "run", "usr/lib"}) {
    std::error_code absent;
    for (const auto& file :
         std::filesystem::directory_iterator(root / folder / "systemd/logind.conf.d", absent)) {
      if (has_line(file.path(), "RemoveIPC=no")) return false;
    }
  }
  return true;
}

std::string own_nccl_warning() {
  constexpr std::size_t kLongest = 160;  // A failure's text has 512 bytes.
  constexpr std::string_view kMark = "NCCL WARN ";
  const char* const pattern = std::getenv("NCCL_DEBUG_FILE");
  if (pattern == nullptr) return "";
  std::string path = pattern;
  for (const auto& [sign, value] :
       {std::pair<std::string, std::string>("%p", std::to_string(getpid())),
        std::pair<std::string, std::string>("%h", own_host_name())}) {
    if (const std::size_t at = path.find(sign); at != std::string::npos)
      path.replace(at, sign.size(), value);
  }
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none)) return "";
  std::ifstream file(path);
  std::string found;
  for (std::string line; std::getline(file, line);) {
    const std::size_t at = line.find(kMark);
    if (at != std::string::npos) found = line.substr(at + kMark.size(), kLongest);
  }
  return found;
}

}  // namespace ivy::comm::nccl
