// ivyrun with agents, ivyctl and ivy-agent in one file, for packages that bring their own
// libraries: gRPC and OpenSSL, most of each, are there once. The name by which it is called
// chooses.
#include <sys/prctl.h>

#include <string_view>

extern "C" {
int ivyrun_main(int argc, char** argv);
int ivyctl_main(int argc, char** argv);
int ivy_agent_main(int argc, char** argv);
}

int main(int argc, char** argv) {
  std::string_view name = argc > 0 ? argv[0] : "";
  name.remove_prefix(name.rfind('/') + 1);
  if (name == "ivyctl" || name == "ivy-agent") prctl(PR_SET_NAME, name.data());
  if (name == "ivyctl") return ivyctl_main(argc, argv);
  if (name == "ivy-agent") return ivy_agent_main(argc, argv);
  return ivyrun_main(argc, argv);
}
