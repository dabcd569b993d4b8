// ivyrun: one command starts one worker per accelerator on every host.
#include "launcher/program.h"

#ifdef IVY_HAS_WARDEN
#include "agent/node/roles/warden_role.h"
constexpr ivy::WardenCopy::Main kWardenRole = ivy::run_warden_role;
#else
constexpr ivy::WardenCopy::Main kWardenRole = nullptr;
#endif

int main(int argc, char** argv) { return ivy::run_program(argc, argv, kWardenRole); }
