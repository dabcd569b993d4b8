// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/library.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

namespace ivy::comm::nccl {
namespace {

// Returns the path in IVY_NCCL_LIB, or null if it is not set.
const char* named_library() {
  const char* const named = std::getenv("IVY_NCCL_LIB");
  return named != nullptr && *named != '\0' ? named : nullptr;
}

// Returns the path of the first mapped library whose file name starts with `name`, or an empty
// text.
std::string mapped_file(std::string_view name) {
  struct Search {
    std::string_view name;
    std::string found;
  };
  Search search{name, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* one, std::size_t, void* where) {
        auto* const wanted = static_cast<Search*>(where);
        const std::string_view path = one->dlpi_name != nullptr ? one->dlpi_name : "";
        const std::string_view file = path.substr(path.rfind('/') + 1);
        if (!file.starts_with(wanted->name)) return 0;
        wanted->found = path;
        return 1;
      },
      &search);
  return search.found;
}

std::mutex folders_mutex;
std::string& package_folders() {
  static std::string folders;
  return folders;
}

void add_folders(std::string_view list, std::vector<std::string>& folders) {
  while (!list.empty()) {
    const std::size_t end = list.find(':');
    if (end != 0) folders.emplace_back(list.substr(0, end));
    list = end == std::string_view::npos ? "" : list.substr(end + 1);
  }
}

// Returns the paths at which pip may have installed NCCL, in directories of Python's packages:
// first those of set_package_folders(), then the directory of a mapped extension module (for
// .../site-packages/numpy/x.so, NCCL is in .../site-packages/nvidia/nccl/lib), then those of
// PYTHONPATH.
std::vector<std::string> pip_files() {
  std::vector<std::string> folders;
  {
    const std::lock_guard lock(folders_mutex);
    add_folders(package_folders(), folders);
  }
  dl_iterate_phdr(
      [](dl_phdr_info* one, std::size_t, void* where) {
        const std::string path = one->dlpi_name != nullptr ? one->dlpi_name : "";
        for (const std::string_view name : {"/site-packages/", "/dist-packages/"}) {
          const std::size_t at = path.find(name);
          if (at == std::string::npos) continue;
          static_cast<std::vector<std::string>*>(where)->push_back(
              path.substr(0, at + name.size() - 1));
          return 1;  // Stop, because an environment has only one such directory.
        }
        return 0;
      },
      &folders);
  const char* const paths = std::getenv("PYTHONPATH");
  add_folders(paths != nullptr ? paths : "", folders);
  for (std::string& folder : folders) folder += "/nvidia/nccl/lib/libnccl.so.2";
  return folders;
}

void* open_quietly(const std::string& file) { return dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL); }

struct Opened {
  void* library = nullptr;
  std::string reason;  // The reason if `library` is null.
};

Opened find_library() {
  Opened opened;
  if (const char* const named = named_library()) {
    opened.library = open_quietly(named);
    if (opened.library == nullptr)
      opened.reason = std::string("IVY_NCCL_LIB cannot be loaded: ") + dlerror();
    return opened;
  }
  for (const char* const name : {"libnccl.so.2", "librccl.so.1"}) {
    opened.library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (opened.library != nullptr) return opened;
  }
  const std::string mapped = mapped_file("libnccl");
  if (!mapped.empty()) opened.library = open_quietly(mapped);
  for (const std::string& file : pip_files()) {
    if (opened.library == nullptr && access(file.c_str(), R_OK) == 0) {
      opened.library = open_quietly(file);
    }
  }
  for (const char* const name : {"libnccl.so.2", "librccl.so.1"}) {
    if (opened.library != nullptr) return opened;
    opened.library = open_quietly(name);
    if (opened.library == nullptr) {
      opened.reason += (opened.reason.empty() ? "" : "; ") + std::string(dlerror());
    }
  }
  return opened;
}

std::string file_of(void* address) {
  Dl_info info = {};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return "?";
  char resolved[PATH_MAX];
  return realpath(info.dli_fname, resolved) != nullptr ? resolved : info.dli_fname;
}

template <class Function>
bool take(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

Error unusable(const std::string& what) {
  return Error{
      Code::kFailedPrecondition, what,
      named_library() != nullptr
          ? "set IVY_NCCL_LIB to the libnccl.so.2 of a newer NCCL, or unset it and pip install "
            "nvidia-nccl-cu12"
          : "pip install nvidia-nccl-cu12, or set IVY_NCCL_LIB to libnccl.so.2"};
}

}  // namespace

void set_package_folders(const std::string& folders) {
  const std::lock_guard lock(folders_mutex);
  package_folders() = folders;
}

std::string version_text(int version) {
  // Since 2.9, the minor number has two digits.
  const int major = version >= 10'000 ? version / 10'000 : version / 1'000;
  const int minor = version >= 10'000 ? version / 100 % 100 : version / 100 % 10;
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(version % 100);
}

Result<void> Library::fill(void* library) {
  Functions& f = functions_;
  if (!take(library, "ncclGetVersion", f.get_version) || f.get_version(&version_) != kSuccess) {
    return unusable(path_ + " is not NCCL: it has no working ncclGetVersion");
  }
  path_ = file_of(reinterpret_cast<void*>(f.get_version));
  // Check the version first: it explains missing functions.
  IVY_CHECK(check());
  const auto find = [&](const char* name, bool is_required, auto& function) -> Result<void> {
    if (take(library, name, function) || !is_required) return {};
    return unusable("NCCL " + version_text(version_) + " (" + path_ + ") lacks the function " +
                    name);
  };
#define IVY_NCCL(member, name, is_required, ...) IVY_CHECK(find(name, is_required, f.member));
#include "comm/nccl/functions.def"
  return {};
}

Result<void> Library::check() const {
  if (version_ >= kOldest) return {};
  return unusable("NCCL " + version_text(version_) + " (" + path_ +
                  ") is older than 2.14: its init cannot be aborted if a rank is missing");
}

Result<const Library*> Library::open() {
  const Opened opened = find_library();
  if (opened.library == nullptr) {
    return unusable("NCCL cannot be loaded: " + opened.reason);
  }
  auto library = std::unique_ptr<Library>(new Library());
  const char* const named = named_library();
  library->path_ = named != nullptr ? named : "libnccl.so.2";
  IVY_CHECK(library->fill(opened.library));
  return static_cast<const Library*>(library.release());  // It lives until the process ends.
}

// Searches again after a failure, because `import torch` may have mapped a library since then.
Result<const Library*> Library::load() {
  static std::atomic<const Library*> loaded = nullptr;
  if (const Library* const library = loaded.load(std::memory_order_acquire)) return library;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (loaded.load(std::memory_order_relaxed) == nullptr) {
    loaded.store(IVY_TRY(open()), std::memory_order_release);
  }
  return loaded.load(std::memory_order_relaxed);
}

std::string Library::name_of_error(Status status) const {
  const char* const name = functions_.get_error_string(status);
  return name != nullptr ? name : "error " + std::to_string(status);
}

}  // namespace ivy::comm::nccl
