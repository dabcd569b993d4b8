// SPDX-License-Identifier: Apache-2.0
#include "launcher/hang/stack_text.h"

#include <algorithm>
#include <array>

#include "proto/contract/text.h"

namespace ivy {
namespace {

// More than any of the three tools prints.
constexpr std::size_t kMaxThreads = 2048;
constexpr std::size_t kMaxStackFrames = 256;
constexpr std::size_t kMaxFrameBytes = 400;
constexpr std::string_view kMain = "main thread";

// Shortens a path to the part that users know: the part below the folder of packages or of the
// standard library. Returns other paths unchanged.
std::string short_path(std::string_view path) {
  for (const std::string_view folder : {"/site-packages/", "/dist-packages/"})
    if (const std::size_t at = path.rfind(folder); at != std::string_view::npos)
      return std::string(path.substr(at + folder.size()));
  // A file of the interpreter's standard library.
  if (const std::size_t at = path.rfind("/lib/python"); at != std::string_view::npos)
    if (const std::size_t slash = path.find('/', at + 11); slash != std::string_view::npos)
      return std::string(path.substr(slash + 1));
  return std::string(path);
}

bool take_prefix(std::string_view& line, std::string_view prefix) {
  if (!line.starts_with(prefix)) return false;
  line.remove_prefix(prefix.size());
  return true;
}

class Threads {
 public:
  void begin(std::string name) {
    if (all_.size() < kMaxThreads) all_.push_back({std::move(name), {}});
  }
  void frame(std::string text) {
    if (all_.empty() || all_.back().frames.size() >= kMaxStackFrames) return;
    all_.back().frames.push_back(text.substr(0, kMaxFrameBytes));
  }
  std::vector<StackThread> take() {
    std::erase_if(all_, [](const StackThread& thread) { return thread.frames.empty(); });
    // The main thread was requested twice, by itself and among all; keep it once.
    const auto is_main = [](const StackThread& thread) { return thread.name == kMain; };
    const auto first = std::find_if(all_.begin(), all_.end(), is_main);
    if (first == all_.end()) return std::move(all_);
    all_.erase(std::remove_if(first + 1, all_.end(), is_main), all_.end());
    const auto main = std::find_if(all_.begin(), all_.end(), is_main);
    std::rotate(all_.begin(), main, main + 1);
    return std::move(all_);
  }

 private:
  std::vector<StackThread> all_;
};

//   Stack (most recent call first):                          the main thread, by itself
//   Current thread 0x00007f... (most recent call first):     the main thread, among all
//   Thread 0x00007f... [name] (most recent call first):
//     File "/x/train.py", line 12 in step

std::string faulthandler_frame(std::string_view line) {
  const std::size_t end = line.rfind("\", line ");
  if (end == std::string_view::npos) return "";
  const std::string path = short_path(line.substr(0, end));
  const std::string_view rest = line.substr(end + 8);
  const std::size_t in = rest.find(" in ");
  if (in == std::string_view::npos) return "";
  return std::string(rest.substr(in + 4)) + " (" + path + ":" + std::string(rest.substr(0, in)) +
         ")";
}

std::string thread_name(std::string_view line) {
  const std::size_t open = line.find('[');
  const std::size_t close = line.find(']');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open)
    return "thread";
  return "thread " + std::string(line.substr(open + 1, close - open - 1));
}

std::vector<StackThread> parse_faulthandler(std::string_view text) {
  Threads threads;
  while (!text.empty()) {
    std::string_view line = take_part(text, '\n');
    if (line.starts_with("Stack (") || line.starts_with("Current thread ")) {
      threads.begin(std::string(kMain));
    } else if (line.starts_with("Thread 0x")) {
      threads.begin(thread_name(line));
    } else if (take_prefix(line, "  File \"")) {
      const std::string frame = faulthandler_frame(line);
      if (!frame.empty()) threads.frame(frame);
    }
  }
  return threads.take();
}

//   Thread 77 (idle): "MainThread"
//       all_reduce (torch/distributed/distributed_c10d.py:4174)
//           Arguments: ...                                   only with --locals

std::vector<StackThread> parse_py_spy(std::string_view text) {
  Threads threads;
  while (!text.empty()) {
    std::string_view line = take_part(text, '\n');
    if (line.starts_with("Thread ")) {
      const std::size_t open = line.find('"');
      std::string name = "thread";
      if (open != std::string_view::npos) {
        const std::string_view quoted = line.substr(open + 1, line.rfind('"') - open - 1);
        name = quoted == "MainThread" ? kMain : "thread " + std::string(quoted);
      }
      threads.begin(std::move(name));
    } else if (line.starts_with("    ") && !line.starts_with("     ")) {
      const std::size_t open = line.rfind(" (");
      if (open == std::string_view::npos) continue;
      threads.frame(std::string(line.substr(4, open - 4)) + " (" +
                    short_path(line.substr(open + 2)));
    }
  }
  return threads.take();
}

//   Thread 1 (Thread 0x7f... (LWP 77) "python3"):
//   #1  0x000055... in main (argc=1, argv=0x7ff...) at x.c:12
//   #2  0x000055... in ?? () from /lib/x86_64-linux-gnu/libc.so.6

std::string gdb_frame(std::string_view line) {
  line.remove_prefix(std::min(line.size(), line.find(' ')));
  line.remove_prefix(std::min(line.size(), line.find_first_not_of(' ')));
  if (line.starts_with("0x")) {
    const std::size_t in = line.find(" in ");
    if (in == std::string_view::npos) return "";
    line.remove_prefix(in + 4);
  }
  // Leave out the values of arguments, which differ between processes.
  const std::size_t open = line.find(" (");
  const std::string function(line.substr(0, open));
  for (const std::string_view word : {" at ", " from "}) {
    const std::size_t at = line.rfind(word);
    if (at == std::string_view::npos || at < open) continue;
    const std::string_view path = line.substr(at + word.size());
    const std::size_t slash = path.rfind('/');
    return function + " (" +
           std::string(slash == std::string_view::npos ? path : path.substr(slash + 1)) + ")";
  }
  return function;
}

std::vector<StackThread> parse_gdb(std::string_view text) {
  Threads threads;
  while (!text.empty()) {
    const std::string_view line = take_part(text, '\n');
    if (line.starts_with("Thread ") && line.ends_with(":")) {
      // gdb numbers a process's threads in the order of their creation.
      threads.begin(line.starts_with("Thread 1 ") ? std::string(kMain) : "thread");
    } else if (line.starts_with("#")) {
      const std::string frame = gdb_frame(line);
      if (!frame.empty()) threads.frame(frame);
    }
  }
  return threads.take();
}

struct Library {
  std::string_view path;
  std::string_view name;
};
constexpr std::array<Library, 6> kLibraries = {{{"torch/distributed/", "torch's "},
                                                {"ivycomm/", "ivycomm's "},
                                                {"jax/experimental/multihost_utils", "JAX's "},
                                                {"horovod/", "Horovod's "},
                                                {"mpi4py/", "mpi4py's "},
                                                {"deepspeed/comm/", "DeepSpeed's "}}};

const Library* library_of(const std::string& frame) {
  const std::size_t open = frame.rfind('(');
  if (open == std::string::npos) return nullptr;
  for (const Library& library : kLibraries)
    if (frame.compare(open + 1, library.path.size(), library.path) == 0) return &library;
  return nullptr;
}

// Returns true for wrappers that appear around every call.
bool is_wrapper(const std::string& frame) {
  return frame.find("c10d_logger.py") != std::string::npos || frame.starts_with("wrapper ") ||
         frame.starts_with("inner ");
}

}  // namespace

std::vector<StackThread> parse_stack(std::string_view tool, std::string_view text) {
  if (tool == "faulthandler") return parse_faulthandler(text);
  if (tool == "py-spy") return parse_py_spy(text);
  if (tool == "gdb") return parse_gdb(text);
  return {};
}

std::string collective_of(const StackThread& thread) {
  // The frames, from the innermost: functions that the library calls, the library, its caller.
  const Library* library = nullptr;
  std::string function;
  for (const std::string& frame : thread.frames) {
    const Library* here = library_of(frame);
    if (library == nullptr) library = here;
    if (library == nullptr) continue;
    if (here == library) {
      if (!is_wrapper(frame)) function = frame.substr(0, frame.find(" ("));
      continue;
    }
    const std::size_t open = frame.rfind('(');
    std::string path = frame.substr(open + 1, frame.size() - open - 2);
    if (const std::size_t slash = path.rfind('/'); slash != std::string::npos)
      path.erase(0, slash + 1);
    return std::string(library->name) + function + " at " + path;
  }
  return "";
}

}  // namespace ivy
