// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/other_launchers.h"

#include "launcher/options/option_table.h"
#include "proto/contract/text.h"
#include "proto/pages/command_page.h"

namespace ivy {
namespace {

constexpr OtherLauncher kLaunchers[] = {
    {"torchrun",
     "--nnodes --nproc-per-node --node-rank --master-addr --master-port --rdzv-backend "
     "--rdzv-endpoint --rdzv-id --rdzv-conf --standalone --max-restarts --monitor-interval "
     "--role -m --module --no-python --log-dir -r --redirects -t --tee "
     "--local-ranks-filter --local-addr --numa-binding --virtual-local-rank --shutdown-timeout",
     "You start torchrun on every node, but ivyrun only once:\n\n"
     "    torchrun --nnodes 4 --nproc-per-node 8 --rdzv-endpoint node01:29400 train.py    # on "
     "each of four nodes\n"
     "    ivyrun -H 'node[01-04]' --nproc-per-node 8 train.py                             # on one "
     "of them\n\n"
     "If something else starts every node (PyTorchJob, `srun`), `ivyrun --nnodes 4 --node-rank "
     "R --master-addr\n"
     "node01 ...` takes torchrun's place: [torchrun mode](torchrun.md). `PET_*` variables count "
     "here as well.\n"
     "Scripts find torchrun's variables and need no change."},
    {"mpirun",
     "-np -n -H -host --host -hostfile --hostfile -machinefile -x -wdir --tag-output "
     "--timestamp-output --output-filename -npernode --map-by --bind-to --report-bindings "
     "--oversubscribe --mca --allow-run-as-root --timeout --display-map --display-allocation "
     "--stdin -N -ppn -f -genv -genvlist -genvall -env -prepend-rank",
     "Programs of MPICH and Open MPI find one world under ivyrun without their own mpirun: "
     "[MPI](mpi.md).\n\n"
     "    mpirun -np 16 -H a:8,b:8 -x NAME ./program\n"
     "    ivyrun -n 16 -H a:8,b:8 -x NAME ./program\n\n"
     "Only variables named by `-x` are passed on, as with Open MPI, and those that "
     "frameworks read:\n"
     "[environment](environment.md)."},
    {"srun",
     "-n --ntasks -N --nodes --ntasks-per-node -w --nodelist -c --cpus-per-task --gres --gpus "
     "--gpus-per-node --gpus-per-task --cpu-bind -l --label -u --unbuffered -o --output -e "
     "--error -i -t --time -K --kill-on-bad-exit --chdir --export -p --partition -A --account "
     "--qos --exclusive --mem -J --job-name --mpi --container-image --exclude",
     "Inside `sbatch` or `salloc` ivyrun finds the hosts by itself and starts them by one step of "
     "srun:\n\n"
     "    srun --ntasks-per-node 8 python train.py\n"
     "    ivyrun --nproc-per-node 8 train.py\n\n"
     "Allocation options (partition, account, memory) remain with sbatch: [Slurm](slurm.md)."},
    {"deepspeed",
     "-H --hostfile --include --exclude --num-nodes --num-gpus --master-port --master-addr "
     "--node-rank --launcher --launcher-args --module --no-python "
     "--enable-each-rank-log --bind-cores-to-rank --ssh-port",
     "    deepspeed --hostfile hosts --num-gpus 8 train.py --deepspeed_config ds.json\n"
     "    ivyrun --hostfile hosts --nproc-per-node 8 train.py --deepspeed_config ds.json\n\n"
     "DeepSpeed's `-H` is a hostfile: ivyrun's `-H` also accepts the name of a hostfile. No "
     "pdsh is needed."},
    {"accelerate",
     "--num-processes --num-machines --machine-rank --main-process-ip --main-process-port "
     "--mixed-precision --multi-gpu --use-deepspeed --use-fsdp --dynamo-backend --config-file "
     "-m --module --no-python --num-cpu-threads-per-process --rdzv-backend "
     "--rdzv-conf --max-restarts --monitor-interval --log-dir --role -q --quiet "
     "--enable-cpu-affinity",
     "    accelerate launch --num_processes 16 --num_machines 2 --machine_rank R --main_process_ip "
     "a train.py\n"
     "    ivyrun -n 16 -H a,b train.py\n\n"
     "Training options (precision, FSDP, DeepSpeed) go into `Accelerator(...)` or "
     "`ACCELERATE_*`."},
    {"horovodrun",
     "-np --num-proc -H --hosts --hostfile -p --ssh-port -i --ssh-identity-file "
     "--network-interfaces --start-timeout --output-filename --verbose --config-file --mpi "
     "--slots-per-host "
     "--prefix-output-with-timestamp --stall-check",
     "    horovodrun -np 16 -H a:8,b:8 python train.py\n"
     "    ivyrun -B horovod -n 16 -H a:8,b:8 train.py\n\n"
     "`-B horovod` is for programs of Horovod ([frameworks](frameworks.md)); programs that have "
     "moved to torch, JAX or\n`ivycomm` do not need it."}};

// Describes ivyrun's equivalent of another launcher's flag.
std::string meaning_of(std::string_view flag) {
  std::optional<OptionSpelling> spelling = find_option(flag);
  if (!spelling && flag.size() > 2 && flag[1] != '-')
    spelling = find_option("-" + std::string(flag));
  if (!spelling) return {};
  const OptionEntry& entry = *spelling->entry;
  const std::string text(entry.text);
  if (entry.kind == OptionKind::kRejected) return "rejected: " + text;
  if (entry.kind == OptionKind::kIgnored)
    return text.empty() ? "accepted, but has no effect" : "ignored: " + text;
  const std::string own = "--" + std::string(entry.name);
  const std::string value = spelling->implied_value.empty() ? std::string(entry.value)
                                                            : std::string(spelling->implied_value);
  return (own == flag ? "the same: " : "`" + own + (value.empty() ? "" : " " + value) + "`: ") +
         text;
}

}  // namespace

std::span<const OtherLauncher> other_launchers() { return kLaunchers; }

std::string coming_from_page() {
  std::string text =
      "# Coming from another launcher\n"
      "What you type today, and the same for ivyrun. Flags may be written with `-` or `_`. If a "
      "flag means something\ndifferent here, ivyrun rejects it and tells you what to write "
      "instead. It never guesses.\n";
  for (const OtherLauncher& launcher : kLaunchers) {
    text += "\n## " + std::string(launcher.name) + "\n" + std::string(launcher.text) +
            "\n\nFlag by flag:\n\n";
    for (const std::string_view flag : words_of(launcher.flags))
      text += markdown_item("`" + std::string(flag) + "`", meaning_of(flag));
  }
  return text;
}

}  // namespace ivy
