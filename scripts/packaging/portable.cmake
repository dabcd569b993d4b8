# ivy_portable: what packages for every system hold in place of ivyrun-agents, ivyctl and ivy-agent, in portable/.
# One program with gRPC, OpenSSL and libarchive inside (launcher/one_file.cc), and call_beside, for packages without links.
# Not part of the default build: scripts/package asks for it.
set(IVY_PORTABLE ${CMAKE_BINARY_DIR}/portable)

# ivy_main_of(MAIN PROGRAM): an object with the program's main under another name.
function(ivy_main_of main program)
  set(object ${IVY_PORTABLE}/${main}.o)
  add_custom_command(OUTPUT ${object}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${IVY_PORTABLE}
    COMMAND ${CMAKE_OBJCOPY} --redefine-sym main=${main} $<TARGET_OBJECTS:${program}> ${object}
    DEPENDS $<TARGET_OBJECTS:${program}> VERBATIM)
  set(${main}_object ${object} PARENT_SCOPE)
endfunction()
ivy_main_of(ivyrun_main ivyrun-agents)
ivy_main_of(ivyctl_main ivyctl)
ivy_main_of(ivy_agent_main ivy-agent)

# Agent and launcher are never linked together elsewhere, and may use one name for two things: all of the agent
# but its main becomes local to one object.
set(agent_object ${IVY_PORTABLE}/ivy_agent.o)
set(agent_archives)
foreach(library ivy_agent_core ivy_node_core ivy_devices ivy_agent_user ivy_agent_config
        ivy_certificate ivy_agent_proto ivy_proto ivy_handshake ivy_contract)
  list(APPEND agent_archives $<TARGET_FILE:${library}>)
endforeach()
add_custom_command(OUTPUT ${agent_object}
  COMMAND ld.bfd -r --force-group-allocation -o ${agent_object} ${ivy_agent_main_object} --start-group ${agent_archives} --end-group
  # objcopy does not make GNU's unique symbols local, so they become weak first: those alone, because a linker
  # takes no member of an archive for a weak reference, and the agent's gRPC would be missing.
  COMMAND sh -c "${CMAKE_NM} --defined-only --format=posix \"$0\" | sed -n 's/ u .*//p' >\"$0.unique\"" ${agent_object}
  COMMAND ${CMAKE_OBJCOPY} --weaken-symbols=${agent_object}.unique ${agent_object}
  COMMAND ${CMAKE_OBJCOPY} --keep-global-symbol=ivy_agent_main ${agent_object}
  DEPENDS ${ivy_agent_main_object} ${agent_archives} COMMAND_EXPAND_LISTS VERBATIM)

# Libraries that load on glibc 2.28, too (RHEL 8), where Zig's linker is there, which knows what each glibc has. The
# objects are those of the build: only what they are linked against differs, and glibc_2_28.cc has the rest.
set(IVY_ZIG ${CMAKE_BINARY_DIR}/zig/bin/python)
set(IVY_OLD_LIBRARIES)
# ivy_library_for_glibc_2_28(TARGET NAME MAP ARCHIVE...): portable/NAME from the objects of TARGET, showing MAP.
function(ivy_library_for_glibc_2_28 target name map)
  set(library ${IVY_PORTABLE}/${name})
  set(archives)
  foreach(archive IN LISTS ARGN)
    list(APPEND archives $<TARGET_FILE:${archive}>)
  endforeach()
  set(of_compiler)
  foreach(archive libstdc++.a libgcc_eh.a libgcc.a)
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=${archive} OUTPUT_VARIABLE path
      OUTPUT_STRIP_TRAILING_WHITESPACE)
    list(APPEND of_compiler ${path})
  endforeach()
  add_custom_command(OUTPUT ${library}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${IVY_PORTABLE}
    COMMAND ${IVY_ZIG} -m ziglang cc -target ${CMAKE_SYSTEM_PROCESSOR}-linux-gnu.2.28 -shared -s -o ${library}
      -Wl,-soname,${name} -Wl,--version-script=${CMAKE_SOURCE_DIR}/${map} -Wl,-z,defs -Wl,--gc-sections
      $<TARGET_OBJECTS:${target}> $<TARGET_OBJECTS:ivy_older_glibc> $<TARGET_OBJECTS:ivy_glibc_2_28>
      ${archives} ${OPENSSL_CRYPTO_LIBRARY} ${of_compiler} -lpthread -ldl -lrt
    DEPENDS $<TARGET_OBJECTS:${target}> ivy_older_glibc ivy_glibc_2_28 ${ARGN} ${map}
    COMMAND_EXPAND_LISTS VERBATIM)
  set(IVY_OLD_LIBRARIES ${IVY_OLD_LIBRARIES} ${library} PARENT_SCOPE)
endfunction()
if(EXISTS ${IVY_ZIG})
  add_library(ivy_glibc_2_28 OBJECT EXCLUDE_FROM_ALL proto/os/glibc_2_28.cc)
  target_link_libraries(ivy_glibc_2_28 PRIVATE ivy_options)
  ivy_library_for_glibc_2_28(ivycomm libivycomm.so.1 comm/exports.map ivy_comm_core ivy_reduce ivy_store_client
    ivy_store_codec ivy_handshake ivy_contract)
  ivy_library_for_glibc_2_28(ivycomm_jax libivycomm_jax.so comm/exports.map ivy_contract)
  ivy_library_for_glibc_2_28(ivy_nccl_profiler libivy_nccl_profiler.so comm/nccl_profiler/exports.map
    ivy_nccl_profiler_core ivy_contract)
endif()

find_library(IVY_LIBARCHIVE_ARCHIVE NAMES libarchive.a)
if(IVY_LIBARCHIVE_ARCHIVE AND IVY_ZSTD_ARCHIVE)
  add_executable(ivy_one_file EXCLUDE_FROM_ALL launcher/one_file.cc ${agent_object}
    ${ivyrun_main_object} ${ivyctl_main_object})
  target_link_libraries(ivy_one_file PRIVATE ivy_options ivy_program ivy_join ivy_job ivy_ctl ivy_agent_links
    protobuf::libprotobuf-lite ${IVY_LIBARCHIVE_ARCHIVE} ${IVY_ZSTD_ARCHIVE} ${IVY_ZLIB_ARCHIVE})
  target_link_options(ivy_one_file PRIVATE -static-libstdc++ -static-libgcc -Wl,--gc-sections -no-pie)
  set_target_properties(ivy_one_file PROPERTIES POSITION_INDEPENDENT_CODE OFF
    OUTPUT_NAME ivyrun-agents RUNTIME_OUTPUT_DIRECTORY ${IVY_PORTABLE})
  ivy_for_older_glibc(ivy_one_file)
  # A reference that no archive satisfied would be called at address 0.
  add_custom_command(TARGET ivy_one_file POST_BUILD
    COMMAND sh -c "! ${CMAKE_NM} --undefined-only \"$0\" | grep -E ' (_ZN[A-Z]*(4grpc|9grpc_core|6google8protobuf)|grpc_|archive_)'"
            $<TARGET_FILE:ivy_one_file> VERBATIM)
  add_executable(call_beside EXCLUDE_FROM_ALL launcher/call_beside.c)
  target_link_options(call_beside PRIVATE -s)
  set_target_properties(call_beside PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${IVY_PORTABLE})
  add_custom_target(ivy_portable DEPENDS ivy_one_file call_beside ${IVY_OLD_LIBRARIES} ivyrun ivycomm ivycomm_jax ivycomm_calls)
endif()
