// This build's node binary, as links start it on this host. Thread: any.
#pragma once

#include <string>
#include <utility>

namespace ivy {

// Goes on in a copy of this process, in place of starting the program that does the same. It
// returns the exit code and may not throw.
using ProgramMain = int (*)(int argc, char** argv);

struct NodeProgram {
  NodeProgram() = default;
  NodeProgram(std::string its_path, ProgramMain role = nullptr)
      : path(std::move(its_path)), warden(role) {}

  std::string path;
  // The role `warden`, where it is linked into this program too: a local job starts a program less.
  ProgramMain warden = nullptr;
};

}  // namespace ivy
