# cmake -DOUT=bundle.tar -DFILES=a;b -P make_bundle.cmake: a tar of these files without their
# directories, with nothing in it that depends on when and by whom it was made.
set(directory ${OUT}.new)
file(REMOVE_RECURSE ${directory})
file(MAKE_DIRECTORY ${directory})
set(names)
foreach(file IN LISTS FILES)
  get_filename_component(name ${file} NAME)
  file(COPY ${file} DESTINATION ${directory})
  file(CHMOD ${directory}/${name} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE
       GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
  list(APPEND names ${name})
endforeach()
list(SORT names)
execute_process(
  COMMAND tar --create --file=${OUT} --format=ustar --sort=name --owner=0 --group=0
          --numeric-owner --mtime=@0 --directory=${directory} ${names}
  COMMAND_ERROR_IS_FATAL ANY)
file(REMOVE_RECURSE ${directory})
file(SHA256 ${OUT} sha256)
file(WRITE ${OUT}.sha256 "${sha256}\n")
